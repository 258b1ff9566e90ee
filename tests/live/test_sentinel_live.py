"""The sentinel on this machine's real counters, with bounded spinners in cgroups of the test's own.

On a hybrid machine also on the v2 hierarchy beside the v1 controllers: it has cpu.stat and pressure files.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.kernel.host import CgroupVersion, Host
from koordlet.model.view import SurgePlan
from koordlet.sense.sentinel import Sentinel

HOST = Host.preset("host")
CAPACITY_MCPU = len(os.sched_getaffinity(0)) * 1000
UNIFIED = HOST.cgroup_root / "unified"
pytestmark = [
    pytest.mark.live_v1,
    pytest.mark.skipif(
        HOST.version is not CgroupVersion.V1 or not os.access(HOST.dir("cpuacct", ""), os.W_OK) or os.geteuid() != 0,
        reason="needs root and writable cgroup v1 controllers",
    ),
]

SPIN = "import sys, time\nsys.stdin.read()\nend = time.monotonic() + 8\nwhile time.monotonic() < end: pass\n"


@pytest.fixture(params=["v1", "unified"])
def host(request: pytest.FixtureRequest) -> Host:
    if request.param == "v1":
        return HOST
    if not (UNIFIED / "cpu.stat").is_file():
        pytest.skip("no v2 hierarchy beside v1")
    return Host.preset("host", cgroup_root=UNIFIED)


@pytest.fixture
def be(host: Host) -> Iterator[Path]:
    path = host.dir("cpuacct", f"koordlet-test-{uuid.uuid4().hex[:8]}")
    path.mkdir()
    yield path
    with contextlib.suppress(FileNotFoundError):
        path.rmdir()


@contextlib.contextmanager
def spinner(cgroup: Path | None) -> Iterator[None]:
    """One CPU of load for 8 s at most, released only when the process is where it belongs."""
    process = subprocess.Popen([sys.executable, "-S", "-c", SPIN], stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(process.pid))
        process.stdin.close()
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def sentinel(host: Host) -> Iterator[Sentinel]:
    made = Sentinel(host)
    yield made
    made.close()


def counter(cgroup: Path) -> Path:
    usage = cgroup / "cpuacct.usage"
    return usage if usage.is_file() else cgroup / "cpu.stat"


def used_s(cgroup: Path) -> float:
    text = counter(cgroup).read_text()
    return int(text.split()[1]) / 1e6 if text.startswith("usage_usec") else int(text) / 1e9


def calm_mcpu(sentinel: Sentinel) -> float:
    """Non-BE usage before the test's own load, the most of a dozen looks; skips when others leave it no CPU."""
    sentinel.set_plan(SurgePlan(nonbe_mcpu=10**9))
    most_mcpu, seen = 0.0, sentinel.stats()["looks"]
    while sentinel.stats()["looks"] < seen + 12:
        reading = sentinel.surge()[0]
        most_mcpu = max(most_mcpu, reading.value if reading else 0.0)
        select.select([], [], [], 0.01)
    if most_mcpu > CAPACITY_MCPU - 800:
        pytest.skip(f"the machine is busy: {most_mcpu:.0f} of {CAPACITY_MCPU} milli-CPU")
    return most_mcpu


def wait_for_fire(sentinel: Sentinel, timeout_s: float) -> bool:
    readable, _, _ = select.select([sentinel], [], [], timeout_s)
    return bool(readable) and sentinel.take()


def test_fires_for_load_outside_be(sentinel: Sentinel, be: Path) -> None:
    assert sentinel.set_sources((be.name,), ()) == []
    before_mcpu = calm_mcpu(sentinel)
    sentinel.set_plan(SurgePlan(nonbe_mcpu=int(before_mcpu) + 500))
    with spinner(None):
        assert wait_for_fire(sentinel, 5)
        reading = sentinel.surge()[0]
    assert reading is not None
    assert 300 < reading.value <= CAPACITY_MCPU * 1.5  # a later look, perhaps after a neighbour stopped


def test_load_inside_be_is_no_reason_and_a_removed_root_no_fault(sentinel: Sentinel, be: Path) -> None:
    assert sentinel.set_sources((be.name,), ()) == []
    plan = SurgePlan(nonbe_mcpu=int(calm_mcpu(sentinel)) + 700)
    with spinner(be):
        for _ in range(12):  # a neighbour's burst may fire it; were BE counted, each attempt would
            sentinel.set_plan(plan)
            before_s = used_s(be)
            quiet = not wait_for_fire(sentinel, 0.5)
            be_used_s = used_s(be) - before_s
            if quiet and be_used_s > 0.3:
                break
        reading = sentinel.surge()[0]
    assert quiet
    assert be_used_s > 0.3
    assert reading is not None

    watched = counter(be)
    be.rmdir()
    looks = sentinel.stats()["looks"]
    while sentinel.stats()["looks"] < looks + 10:
        select.select([], [], [], 0.01)
    after = sentinel.stats()
    assert (after["gone"], after["errors"]) == (1, 0)
    fresh = sentinel.surge()[0]
    assert fresh is not None
    assert fresh.at_s > reading.at_s
    assert sentinel.set_sources((be.name,), ()) == [str(watched)]
