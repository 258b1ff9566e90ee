"""Block I/O limits on real kernels, on a loop device of bounded size, and what is left of them and of a burst when an
agent dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.live.loop import loop_device
from tests.live.node import V2, Node, until
from tests.live.scenario import OBSERVED, Scenario, add_recorded

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
MIB = 1 << 20
DIRECT_IO = """
import mmap, os, sys, time
device, how, block, amount = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
fd = os.open(device, os.O_RDWR | os.O_DIRECT)
step = os.preadv if how == "read" else os.pwritev
buffer, total, begun = mmap.mmap(-1, block), 0, time.monotonic()
while total < amount:
    total += step(fd, [buffer], total)
print(total / (time.monotonic() - begun), flush=True)
sys.stdin.read()
"""
BLOCK = 1 << 18
PAGE = 1 << 12


def blkio(device: str, **cfg: int) -> dict[str, Any]:
    block = {"name": device, "type": "device", "ioCfg": cfg}
    return {"resourceQOSStrategy": {"beClass": {"blkioQOS": {"enable": True, "blocks": [block]}}}}


def limits(node: Node, target: str) -> str:
    """What the kernel has for reading bytes."""
    if V2:
        return (Path("/sys/fs/cgroup") / target / "io.max").read_text().strip()
    return (Path("/sys/fs/cgroup/blkio") / target / "blkio.throttle.read_bps_device").read_text().strip()


def number_of(device: str) -> str:
    return Path(f"/sys/class/block/{Path(device).name}/dev").read_text().strip()


def has_io(node: Node) -> str | None:
    if V2 and not (Path("/sys/fs/cgroup") / node.besteffort / "io.max").exists():
        return "no io controller"
    if not V2 and not (Path("/sys/fs/cgroup/blkio") / node.besteffort).is_dir():
        return "no blkio controller"
    return None


def measured(node: Node, target: str, device: str, amount: int, how: str = "read", block: int = BLOCK) -> float:
    """Bytes per second that a process of that group reads or writes, in blocks of that size."""
    process = node.run_in(target, DIRECT_IO, device, how, str(block), str(amount))
    assert process.stdout is not None
    speed = float(process.stdout.readline())
    node.stop_load()
    return speed


def test_io_limits_hold_as_measured(node: Node) -> None:
    """A real block device: BE reads and writes at the limits, of bytes and of requests, another class as fast as the
    device is, and the limits go away."""
    if reason := has_io(node):
        pytest.skip(reason)
    be, ls = node.add_pod("b", "BE"), node.add_pod("a", "LS")
    limit = 4 * MIB
    with loop_device(32 * MIB) as device:
        number = number_of(device)
        free = measured(node, be, device, 32 * MIB)
        if free < 4 * limit:
            pytest.skip(f"the machine is busy: an unlimited reader gets {free / MIB:.0f} MiB/s")
        node.write_slo(blkio(device, readBPS=limit, writeIOPS=100))
        before = limits(node, node.besteffort)
        with node.agent("-feature-gates=BlkIOReconcile=true") as agent:
            until("the limit stands", lambda: number in limits(node, node.besteffort), 10, agent.text)
            held = measured(node, be, device, 8 * MIB)
            other = measured(node, ls, device, 32 * MIB)
            print(f"free {free / MIB:.1f} MiB/s, BE at a limit of 4: {held / MIB:.2f}, LS meanwhile {other / MIB:.1f}")
            assert 0.5 * limit <= held <= 1.3 * limit
            assert other > 2 * held
            written = measured(node, be, device, 150 * PAGE, "write", PAGE) / PAGE
            print(f"BE at a limit of 100 writes/s: {written:.0f}")
            assert 50 <= written <= 130
            node.write_slo(blkio(device, readBPS=2 * limit, writeBPS=limit, readIOPS=100))
            until("the new limit", lambda: str(2 * limit) in limits(node, node.besteffort), 10, agent.text)
            double = measured(node, be, device, 16 * MIB)
            assert 0.5 * 2 * limit <= double <= 1.3 * 2 * limit
            write = measured(node, be, device, 8 * MIB, "write")
            read = measured(node, be, device, 150 * PAGE, "read", PAGE) / PAGE
            print(f"BE at a limit of 4 MiB/s writes {write / MIB:.2f}, at one of 100 reads/s {read:.0f}")
            assert 0.5 * limit <= write <= 1.3 * limit
            assert 50 <= read <= 130
            node.write_slo({})
            until("given back", lambda: limits(node, node.besteffort) == before, 10, agent.text)
            assert measured(node, be, device, 32 * MIB) > 1.5 * double
            assert measured(node, be, device, 32 * MIB, "write") > 1.5 * write
        assert limits(node, node.besteffort) == before


def test_blkio(node: Node) -> None:
    """The recording writes nothing at all (seen 4, 5): here the limits stand, and a missing file stops only itself."""
    if reason := has_io(node):
        pytest.skip(reason)
    spec = (OBSERVED / "blkio.json").read_text()
    with loop_device(8 * MIB) as device:
        number = number_of(device)
        run = json.loads(spec.replace("/dev/vda", device))
        pods = {pod["name"]: add_recorded(node, pod) for pod in run["pods"]}
        node.write_slo(run["nodeslo"])
        io = pods["io"].rpartition("/")[0]
        with node.agent("-feature-gates=BlkIOReconcile=true") as agent:
            until(
                "BE root and pod", lambda: all(number in limits(node, t) for t in (node.besteffort, io)), 10, agent.text
            )
            assert "500000000" in limits(node, node.besteffort)
            step = run["steps"][0]
            node.write_slo(step["nodeslo"])
            node.pods["io"]["metadata"]["annotations"] = {}
            node.write_pods()
            until("gone", lambda: not any(number in limits(node, t) for t in (node.besteffort, io)), 30, agent.text)
            assert agent.stop() == 0


def test_a_killed_agent_is_undone_by_the_next(node: Node) -> None:
    """Quota, burst and a device's line, all at once."""
    run = Scenario(node, "burst-only-100")
    if reason := has_io(node):
        pytest.skip(reason)
    with loop_device(8 * MIB) as device:
        number = number_of(device)
        before = limits(node, node.besteffort)
        node.write_slo({**run.spec["nodeslo"], **blkio(device, readBPS=MIB)})
        gates = "-feature-gates=BlkIOReconcile=true"
        with node.agent(gates) as agent:
            until("all stand", lambda: number in limits(node, node.besteffort) and run.burst("a")[0], 10, agent.text)
            agent.kill()
        node.write_slo({})
        with node.agent(gates) as agent:
            given_back = lambda: limits(node, node.besteffort) == before and run.burst("a") == (0, 0)  # noqa: E731
            until("first values again", given_back, 10, agent.text)
