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


def measured_mcpu(sentinel: Sentinel) -> float:
    """Present non-BE usage: the most of a dozen looks, so that the test does not depend on its neighbours' load."""
    sentinel.set_plan(SurgePlan(nonbe_mcpu=10**9))
    most, seen = 0.0, sentinel.stats()["looks"]
    while sentinel.stats()["looks"] < seen + 12:
        reading = sentinel.surge()[0]
        most = max(most, reading.value if reading else 0.0)
        select.select([], [], [], 0.01)
    return most


def wait_for_fire(sentinel: Sentinel, timeout_s: float) -> bool:
    readable, _, _ = select.select([sentinel], [], [], timeout_s)
    return bool(readable) and sentinel.take()


def test_fires_for_load_outside_be(sentinel: Sentinel, be: Path) -> None:
    assert sentinel.set_sources((be.name,), ()) == []
    capacity_mcpu = len(os.sched_getaffinity(0)) * 1000
    before_mcpu = measured_mcpu(sentinel)
    if before_mcpu > capacity_mcpu - 800:
        pytest.skip(f"the machine is busy: {before_mcpu:.0f} of {capacity_mcpu} milli-CPU")
    sentinel.set_plan(SurgePlan(nonbe_mcpu=int(before_mcpu) + 500))
    with spinner(None):
        assert wait_for_fire(sentinel, 5)
        reading = sentinel.surge()[0]
    assert reading is not None
    assert before_mcpu + 500 < reading.value <= capacity_mcpu * 1.5


def test_load_inside_be_is_no_reason_and_a_removed_root_no_fault(sentinel: Sentinel, be: Path) -> None:
    assert sentinel.set_sources((be.name,), ()) == []
    plan = SurgePlan(nonbe_mcpu=int(measured_mcpu(sentinel)) + 700)
    with spinner(be):
        before_s = used_s(be)
        for _ in range(6):  # a neighbour's burst may fire it; were BE counted, each attempt would
            sentinel.set_plan(plan)
            quiet = not wait_for_fire(sentinel, 0.5)
            if quiet:
                break
        be_used_s = used_s(be) - before_s
        reading = sentinel.surge()[0]
    assert be_used_s > 0.2
    assert quiet
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
