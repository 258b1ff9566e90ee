"""The kernel lab: facts of the machine, and the live tests run inside it, one boot for all."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import pytest

from tests.labs.summary import tell
from tests.labs.vm import Lab, Stalled, missing, running

pytestmark = [pytest.mark.lab_vm, pytest.mark.timeout(3000)]

GUEST_TESTS = "tests/live"


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    reason = missing()
    if reason:
        pytest.skip(f"kernel lab: {reason}")
    with running("two-nodes") as made:
        tell(request.config, "lab_vm", made.told)
        yield made


def test_the_lab_is_the_machine_we_want(lab: Lab) -> None:
    code, text = lab.run(
        "cat /sys/fs/cgroup/cgroup.controllers; cat /sys/devices/system/node/online;"
        "cat /sys/devices/system/cpu/cpu0/topology/thread_siblings_list; cat /proc/pressure/cpu; nproc"
    )
    assert code == 0, text
    for word in ("cpuset cpu io memory", "0-1", "some avg10", "8"):
        assert word in text


def test_the_topology_is_read_as_the_kernel_has_it(lab: Lab) -> None:
    code, text = lab.run(
        "$PYTHON -c 'from koordlet.kernel.host import Host\n"
        "from koordlet.kernel.topology import read_topology\n"
        't = read_topology(Host.preset("host"))\n'
        "print([(c.id, c.core, c.socket, c.node) for c in t.cpus], [(n.id, str(n.cpus)) for n in t.nodes])'"
    )
    assert code == 0, text
    assert "[(0, 0, 0, 0), (1, 0, 0, 0), (2, 1, 0, 0), (3, 1, 0, 0), (4, 2, 1, 1)" in text
    assert "[(0, '0-3'), (1, '4-7')]" in text


def test_cpus_taken_offline_at_run_time_are_gone_and_come_back(lab: Lab) -> None:
    look = (
        "$PYTHON -c 'from koordlet.kernel.host import Host\n"
        "from koordlet.kernel.topology import read_topology\n"
        't = read_topology(Host.preset("host"))\n'
        "print(t.online, [str(n.cpus) for n in t.nodes], sorted(map(str, t.siblings().values())))'\n"
    )
    switch = "for c in 3 6 7; do echo {} > /sys/devices/system/cpu/cpu$c/online; done\n"
    code, text = lab.run(switch.format(0) + look + switch.format(1) + look)
    assert code == 0, text
    assert text.splitlines() == [
        "0-2,4-5 ['0-2', '4-5'] ['0-1', '2', '4-5']",
        "0-7 ['0-3', '4-7'] ['0-1', '2-3', '4-5', '6-7']",
    ]


NEW_MACHINES = 3
"""The emulator itself stalls now and then, when the machine it runs on is held up."""


def test_live_tests_pass_in_the_guest(lab: Lab, request: pytest.FixtureRequest) -> None:
    """Everything marked `live` runs again on cgroup v2 with eight CPUs; the guest's report comes back to the host."""
    chosen = os.environ.get("GUEST_K", "")
    drills = "KOORDLET_DRILLS=1 " if "KOORDLET_DRILLS" in os.environ else ""
    script = (
        f"{drills}$PYTHON -m pytest {GUEST_TESTS} -m live -p no:cacheprovider -v -rP --durations=12 --no-header "
        f"--junitxml=/run/lab/report.xml {f'-k {chosen!r}' if chosen else ''}"
    )
    done: list[str] = []
    for machines_left in reversed(range(NEW_MACHINES + 1)):
        rest = " ".join(f"--deselect {shlex.quote(name)}" for name in done)
        try:
            code, text = lab.run_once(f"{script} {rest}", timeout_s=2400, follow=True)
            break
        except Stalled as stalled:
            if not machines_left:
                raise
            done += re.findall(r"^(tests/\S+::.+?) (?:PASSED|SKIPPED|XFAIL)", stalled.output, re.M)
            tell(request.config, "lab_vm", f"{stalled} after {len(done)} tests; a new machine does the rest")
            lab.reboot()
    assert (lab.share / "report.xml").exists(), text[-3000:]
    report = ElementTree.fromstring((lab.share / "report.xml").read_text())
    suite = report.find("testsuite")
    assert suite is not None
    tell(
        request.config,
        "lab_vm",
        f"in the guest: {suite.attrib['tests']} tests, {suite.attrib['skipped']} skipped, "
        f"{float(suite.attrib['time']):.0f} s",
    )
    assert code == 0, re.sub(r"\x1b\[[0-9;]*m", "", text[-6000:])
    if not chosen:
        assert len(done) + int(suite.attrib["tests"]) - int(suite.attrib["skipped"]) >= 16


def test_best_effort_yields_memory_to_a_fast_online_side(lab: Lab, request: pytest.FixtureRequest) -> None:
    """Tests marked `guest` fill the whole machine; their figures are part of the report."""
    code, text = lab.run(
        f"$PYTHON -m pytest {GUEST_TESTS} -m guest -p no:cacheprovider -q -s --no-header", timeout_s=900, follow=True
    )
    for line in re.findall(r"^.*?((?:koordlet|polling): \{.*\})$", text, re.M):
        tell(request.config, "lab_vm", line)
    assert code == 0, text[-6000:]


OTHERS = {"one-node": "[(0, '0-3')]", "memory-node": "[(0, '0-3'), (1, '')]", "no-psi": "[(0, '0-3'), (1, '4-7')]"}
"""Nodes of each other machine and their CPUs."""


@pytest.fixture(scope="module")
def others() -> dict[str, tuple[str, int, str]]:
    """The answers of the other machines, all booted at once: a boot keeps one of our CPUs busy."""
    if reason := missing():
        pytest.skip(f"kernel lab: {reason}")
    with ThreadPoolExecutor() as pool:
        return dict(zip(OTHERS, pool.map(look_at, OTHERS), strict=True))


def look_at(variant: str) -> tuple[str, int, str]:
    """What is told of the machine, which is gone again, and what a command in it said."""
    with running(variant) as lab:
        code, text = lab.run(
            "cd /sys/fs/cgroup; echo +cpu +cpuset +memory > cgroup.subtree_control; mkdir work; cd -\n"
            "$PYTHON -c 'from koordlet.kernel.host import Host\n"
            "from koordlet.kernel.topology import read_topology\n"
            't = read_topology(Host.preset("host")); print([(n.id, str(n.cpus)) for n in t.nodes])\n'
            "' && $PYTHON -m koordlet check --output json"
        )
        return lab.told, code, text


@pytest.mark.parametrize("variant", OTHERS)
def test_the_agent_looks_at_other_machines(
    request: pytest.FixtureRequest, others: dict[str, tuple[str, int, str]], variant: str
) -> None:
    told, code, text = others[variant]
    tell(request.config, "lab_vm", told)
    assert code == 0, text
    assert OTHERS[variant] in text
    psi = re.search(r'"name": "psi.node",\s+"level": "(\w+)"', text)
    assert psi is not None, text
    assert psi.group(1) == ("unsupported" if variant == "no-psi" else "native")


def test_core_scheduling_cookies_on_a_kernel_that_has_them(request: pytest.FixtureRequest) -> None:
    """The same live test as everywhere, on the files and threads of a kernel that does not skip it."""
    reason = missing("core-sched")
    if reason:
        pytest.skip(f"kernel lab: {reason}")
    with running("core-sched") as lab:
        tell(request.config, "lab_vm", lab.told)
        code, text = lab.run(
            f"$PYTHON -m pytest {GUEST_TESTS}/test_podrules_live.py -m live -k core_scheduling -p no:cacheprovider -v"
        )
        assert code == 0, text[-6000:]
        assert "1 passed" in text, text[-3000:]
