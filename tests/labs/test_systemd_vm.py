"""The real unit and slices under a real systemd on cgroup v2: one boot of the kernel lab with systemd as pid 1."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.labs.summary import tell
from tests.labs.vm import ROOT, Lab, missing, running

pytestmark = [pytest.mark.lab_vm, pytest.mark.timeout(900)]

SLOT = "/sys/fs/cgroup/batch.slice"
CAPS = 1 << 1 | 1 << 24
"""CAP_DAC_OVERRIDE and CAP_SYS_RESOURCE, as in the unit."""

DROP_IN = f"""[Service]
ExecStart=
ExecStart=$PYTHON -m koordlet run --workloads /etc/koordlet/local.d --policy /etc/koordlet/nodeslo.yaml
Environment=PYTHONPATH={ROOT}
# An interpreter and a checkout may stand where the unit hides things.
ProtectHome=no
BindReadOnlyPaths={ROOT}
StandardOutput=append:/run/agent.log
StandardError=append:/run/agent.log
"""

INSTALL = f"""set -e
mkdir -p /etc/systemd/system/koordlet.service.d /etc/koordlet/local.d
cp systemd/koordlet.service systemd/*.slice /etc/systemd/system/
cp systemd/examples/*.yaml /etc/koordlet/; cp systemd/examples/local.d/*.yaml /etc/koordlet/local.d/
cat > /etc/systemd/system/koordlet.service.d/checkout.conf <<END
{DROP_IN}END
systemctl daemon-reload
"""


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    reason = missing("systemd")
    if reason:
        pytest.skip(f"kernel lab: {reason}")
    with running("systemd") as made:
        tell(request.config, "lab_vm", made.told)
        ask(made, INSTALL)
        yield made


@pytest.fixture
def agent(lab: Lab) -> Lab:
    """The unit is started anew; `systemctl start` returns once it said READY."""
    ask(lab, "systemctl stop koordlet; systemctl reset-failed koordlet; : > /run/agent.log; systemctl start koordlet")
    return lab


@pytest.fixture
def job(lab: Lab) -> Iterator[str]:
    """A batch job, started as the example file says; the path of its cgroup."""
    unit = "batch-1.scope"
    ask(lab, f"systemd-run --slice=batch.slice --unit={unit} --scope sleep 600 > /run/job.log 2>&1 &")
    until(lab, "the job's cgroup", f"grep -q . {SLOT}/{unit}/cgroup.procs")
    yield f"{SLOT}/{unit}"
    ask(lab, f"systemctl stop {unit}")


def ask(lab: Lab, script: str) -> str:
    code, text = lab.run(script)
    assert code == 0, f"{script}\n{text}"
    return text.strip()


def show(lab: Lab, *names: str, unit: str = "koordlet.service") -> dict[str, str]:
    text = ask(lab, f"systemctl show {unit} -p {','.join(names)}")
    return dict(line.split("=", 1) for line in text.splitlines())


def until(lab: Lab, what: str, script: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        code, text = lab.run(script)
        if code == 0:
            return
        assert time.monotonic() < end, f"after {seconds:.0f} s still not: {what}\n{text}\n{log(lab)}"


def log(lab: Lab) -> str:
    return lab.run("tail -c 5000 /run/agent.log")[1]


def status(lab: Lab) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(ask(lab, "$PYTHON -m koordlet status --output json"))
    return answer


def test_the_unit_starts_and_has_what_it_needs(agent: Lab) -> None:
    seen = show(agent, "ActiveState", "MainPID", "ControlGroup", "StatusText", "NRestarts")
    assert (seen["ActiveState"], seen["NRestarts"]) == ("active", "0")
    assert seen["ControlGroup"] == "/koordlet.slice/koordlet.service"
    assert seen["StatusText"]
    pid = seen["MainPID"]
    assert ask(agent, f"cat /proc/{pid}/oom_score_adj") == "-900"
    process = ask(agent, f"cat /proc/{pid}/status")
    assert int(re.search(r"CapEff:\s+(\w+)", process)[1], 16) == CAPS  # type: ignore[index]
    assert "NoNewPrivs:\t1" in process
    levels = {row["name"]: row["reason"] for row in status(agent)["capabilities"] if row["level"] == "native"}
    assert "500 ms" in levels["psi.trigger"], "CAP_SYS_RESOURCE is there for this"


def test_slices_have_their_weights(agent: Lab) -> None:
    assert ask(agent, "cat /sys/fs/cgroup/koordlet.slice/cpu.weight") == "1000"
    assert ask(agent, "cat /sys/fs/cgroup/koordlet.slice/memory.min") == str(128 << 20)


def test_a_batch_unit_is_idle_and_capped_until_the_agent_stops(agent: Lab, job: str) -> None:
    ask(agent, "systemctl stop koordlet")
    files = f"cat {SLOT}/cpu.idle {SLOT}/cpu.weight {SLOT}/cpu.max"
    first = ask(agent, files)
    assert first.split("\n") == ["0", "1", "max 100000"]
    ask(agent, "systemctl start koordlet")
    until(agent, "the slice idle", f"grep -qx 1 {SLOT}/cpu.idle")
    until(agent, "the slice capped", f"! grep -q max {SLOT}/cpu.max")
    assert [row["path"] for row in status(agent)["be_roots"]] == ["batch.slice"]
    ask(agent, "systemctl stop koordlet")
    assert ask(agent, files) == first
    assert show(agent, "Result", "ExecMainStatus") == {"Result": "success", "ExecMainStatus": "0"}
    assert not re.search("EACCES|EPERM|ermission|Traceback", log(agent)), log(agent)


def test_what_systemd_resets_is_put_back(agent: Lab, job: str) -> None:
    until(agent, "the slice capped", f"! grep -q max {SLOT}/cpu.max")
    ask(agent, "systemctl set-property --runtime batch.slice CPUWeight=2 CPUQuota=")
    until(agent, "the slice capped again", f"! grep -q max {SLOT}/cpu.max")
    until(agent, "the slice idle again", f"grep -qx 1 {SLOT}/cpu.idle")


def test_reload_is_answered_and_the_agent_goes_on(agent: Lab) -> None:
    pid = show(agent, "MainPID")["MainPID"]
    ask(agent, "systemctl reload koordlet")
    until(agent, "the reload in the log", "grep -q reload.asked /run/agent.log")
    until(agent, "the end of the reload", "[ $(systemctl show -P ActiveState koordlet) = active ]")
    assert show(agent, "MainPID") == {"MainPID": pid}


def test_a_hanging_agent_is_replaced_and_what_it_left_is_undone(agent: Lab, job: str) -> None:
    until(agent, "the slice idle", f"grep -qx 1 {SLOT}/cpu.idle")
    pid = show(agent, "MainPID")["MainPID"]
    ask(agent, f"sleep 12; test $(systemctl show koordlet -p MainPID --value) = {pid}")  # pinged: WatchdogSec is 10
    ask(agent, f"kill -STOP {pid}; : > /run/agent.log")
    wait: Callable[[], str] = lambda: (  # noqa: E731
        f"p=$(systemctl show koordlet -p MainPID --value); test $p != 0 -a $p != {pid} && "
        "systemctl is-active -q koordlet"
    )
    until(agent, "another agent", wait(), 90)
    assert show(agent, "NRestarts")["NRestarts"] == "1"
    until(agent, "what was left undone", "grep -q recovered /run/agent.log")
    until(agent, "the slice idle", f"grep -qx 1 {SLOT}/cpu.idle")
