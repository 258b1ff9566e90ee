"""CPU burst, memory QoS, block I/O and system settings on real kernels: the recordings of the reference where it was
right, the corrected values where it was not (spec/seen.md), and what a clean stop leaves behind.

Inputs stand in tests/observed/. A loop device of bounded size is made for block I/O; the machine's own settings are
only touched inside the kernel lab's guest.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.node import CPUS, V2, Node, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
OBSERVED = Path(__file__).parents[1] / "observed"
GUEST = bool(os.environ.get("KOORDLET_GUEST"))
MIB = 1 << 20


class Scenario:
    """A recording's pods and policy on the scratch node, with the quotas and limits that the kubelet would set."""

    def __init__(self, node: Node, name: str) -> None:
        self.node, self.spec = node, json.loads((OBSERVED / f"{name}.json").read_text())
        self.main: dict[str, str] = {}
        for pod in self.spec["pods"]:
            self.put(pod)
        node.write_slo(self.spec["nodeslo"])

    def put(self, pod: dict[str, Any]) -> None:
        container = pod["containers"][0]
        annotations = {k: v if isinstance(v, str) else json.dumps(v) for k, v in pod.get("annotations", {}).items()}
        main = self.node.add_pod(
            pod["name"],
            pod["labels"]["koordinator.sh/qosClass"],
            annotations=annotations,
            resources={"requests": container["req"], "limits": container.get("lim", {})},
        )
        self.main[pod["name"]] = main
        cpu = container.get("lim", {}).get("cpu")
        if cpu is not None:
            mcpu = int(cpu[:-1]) if cpu.endswith("m") else int(cpu) * 1000
            for target in (main.rpartition("/")[0], main):
                self.node.write(target, "cpu.cfs_quota_us", str(mcpu * 100))

    def both(self, name: str, file: str) -> tuple[int, int]:
        """(pod, container), -1 for unlimited."""
        main = self.main[name]
        words = (self.node.read(target, file).split()[0] for target in (main.rpartition("/")[0], main))
        pod, container = (-1 if word == "max" else int(word) for word in words)
        return pod, container

    def burst(self, name: str) -> tuple[int, int]:
        return self.both(name, "cpu.cfs_burst_us")

    def quota(self, name: str) -> tuple[int, int]:
        return self.both(name, "cpu.cfs_quota_us")


def test_burst_only_100(node: Node) -> None:
    run = Scenario(node, "burst-only-100")
    before = node.knobs()
    half, none = run.spec["steps"]
    with node.agent() as agent:
        until("recorded 100000 and 50000", lambda: run.burst("a") == (100_000,) * 2, 10, agent.text)
        assert run.burst("half") == (50_000, 50_000)
        assert run.burst("nolimit") == run.burst("lsr") == (0, 0)
        node.write_slo(half["nodeslo"])
        until("recorded 50000", lambda: run.burst("a") == (50_000,) * 2, 10)
        assert run.burst("half") == (25_000, 25_000)
        node.write_slo(none["nodeslo"])
        until("recorded 0", lambda: run.burst("a") == run.burst("half") == (0, 0), 10)
        assert agent.stop() == 0
    changed = {path for path, content in node.knobs().items() if before[path] != content}
    assert not {path for path in changed if "besteffort" not in path}


def test_burst_only_default(node: Node) -> None:
    """The reference is refused twice per second for ever (seen 21): ours holds the burst within the quota."""
    run = Scenario(node, "burst-only-default")
    with node.agent() as agent:
        until("burst = quota", lambda: run.burst("a") == (100_000,) * 2, 10, agent.text)
        assert run.burst("half") == (50_000, 50_000)
        assert run.burst("nolimit") == (0, 0)
        assert "write_failed" not in agent.text()


def test_burst_annotation(node: Node) -> None:
    run = Scenario(node, "burst-annotation")
    with node.agent() as agent:
        until("recorded 30000", lambda: run.burst("percent") == (30_000,) * 2, 10, agent.text)
        assert run.burst("bad") == run.burst("type") == (100_000, 100_000), "broken annotations count as absent"
        assert run.burst("off") == run.burst("odd") == (0, 0)
        text = agent.text()
        assert "koordinator.sh/cpuBurst" in text
        assert "sometimes" in text


def test_burst_quota_load(node: Node) -> None:
    """20000 in steps of a fifth up to 60000, pod and container together; it stays there; none brings it back."""
    run = Scenario(node, "burst-quota-load")
    _, _, none = run.spec["steps"]
    seen: set[tuple[int, int]] = set()

    def top() -> bool:
        seen.add(run.quota("a"))
        return (60_000, 60_000) in seen

    with node.agent() as agent:
        until("a reading of the node", lambda: agent.ask("/v1/top")["usage"]["system_mcpu"], 10)
        agent.skip_if_busy()
        node.spin(run.main["a"], 0.8, 60)  # at 0.6 the last step, 59719 to 60000, may not be missed
        try:
            until("recorded 60000", top, 55, lambda: f"{sorted(seen)} {agent.text()}")
        except AssertionError:
            agent.skip_if_busy(0.1)  # half of the node is the pool, and from 0.9 of that on nothing grows
            raise
        steps = (20_000, 24_000, 28_800, 34_560, 41_472, 49_766, 59_719, 60_000)
        for pod, container in seen:  # one after the other, in writing and here: a step may fall between the two
            assert pod in steps
            assert container in steps[max(steps.index(pod) - 1, 0) : steps.index(pod) + 2]
        node.stop_load()
        time.sleep(3)
        assert run.quota("a") == (60_000, 60_000)
        node.write_slo(none["nodeslo"])
        until("recorded 20000", lambda: run.quota("a") == (20_000, 20_000), 10)


def test_normalization_burst_reaches_a_fixed_point(node: Node) -> None:
    """The reference's pod quota ratchets up by 33333 each 10 s (seen 10)."""
    run = Scenario(node, "normalization-burst")
    with node.agent("-feature-gates=CPUNormalization=true"):
        time.sleep(4)
        first = run.quota("ls")
        time.sleep(3)
        assert run.quota("ls") == first
        assert first[1] <= first[0] <= 100_000


def test_qos_level(node: Node) -> None:
    """v1 has none of the files: told once each, nothing fails. v2 has oom.group: pods and containers, never all."""
    run = Scenario(node, "qos-level")
    before = node.knobs()
    with node.agent("-feature-gates=CgroupReconcile=true") as agent:
        if V2:
            groups = [main.rpartition("/")[0] for main in run.main.values()]
            until("oom.group", lambda: all(node.read(pod, "memory.oom.group") == "1" for pod in groups), 10, agent.text)
            assert all(node.read(main, "memory.oom.group") == "1" for main in run.main.values())
            for above in (node.burstable, node.besteffort):
                assert node.read(above, "memory.oom.group") == "0"
        else:
            time.sleep(4)
            text = agent.log_path.read_text()
            told = re.findall(r"unsupported\s.*?knob=(memory\.\S+)", text)
            assert len(told) == len(set(told)) > 0, text[-3000:]
        assert "write_failed" not in agent.text()
        assert agent.stop() == 0
    now = node.knobs()
    assert {path for path in now if "memory" in path and now[path] != before[path]} == set()


@pytest.mark.skipif(not V2, reason="cgroup v1 has no memory.min, low and high")
def test_memory_protection_and_throttling_come_and_go(node: Node) -> None:
    lim = {"requests": {"memory": "100Mi"}, "limits": {"memory": "200Mi"}}
    main = node.add_pod("web", "LS", resources=lim)
    pod = main.rpartition("/")[0]
    qos = {"enable": True, "minLimitPercent": 50, "lowLimitPercent": 80, "throttlingPercent": 80}
    node.write_slo({"resourceQOSStrategy": {"lsClass": {"memoryQOS": qos}}})
    before = node.knobs()
    with node.agent("-feature-gates=CgroupReconcile=true") as agent:
        until("memory.high", lambda: node.read(main, "memory.high") == str(180 * MIB), 10, agent.text)
        for target in (main, pod, node.burstable, f"{node.root}/kubepods"):
            assert node.read(target, "memory.min") == str(50 * MIB)
            assert node.read(target, "memory.low") == str(80 * MIB)
        node.write_slo({"resourceQOSStrategy": {"lsClass": {"memoryQOS": {"enable": False}}}})
        until("all given back", lambda: node.read(pod, "memory.min") == "0", 10, agent.text)
        until("memory.high is back", lambda: node.read(main, "memory.high") == "max", 10)
        # Off is off: what the kubelet writes now is nobody else's business.
        node.write(main, "memory.min", str(10 * MIB))
        time.sleep(2)
        assert node.read(main, "memory.min") == str(10 * MIB)
        node.write(main, "memory.min", "0")
    now = node.knobs()
    assert {path for path in now if "/memory." in path and now[path] != before[path]} == set()


@pytest.mark.skipif(not V2, reason="needs memory.reclaim")
def test_page_cache_above_its_limit_is_reclaimed(node: Node) -> None:
    """memory.reclaim stands in for the vendor kernel's page cache limit."""
    wish = json.dumps({"pageCacheEnable": True, "pageCacheLimitSize": 16 * MIB})
    main = node.add_pod("cache", "LS", annotations={"koordinator.sh/memoryQOS": wish})
    if not (node.path(main, "memory.reclaim")).exists():
        pytest.skip("this kernel has no memory.reclaim (5.19)")
    pod = main.rpartition("/")[0]
    node.write_slo({})

    def cached() -> int:
        rows = dict(line.split() for line in node.read(pod, "memory.stat").splitlines())
        return int(rows["active_file"]) + int(rows["inactive_file"])

    with loop_device(96 * MIB) as device, node.agent("-feature-gates=CgroupReconcile=true") as agent:
        reader = node.run_in(main, READ_ALL, device)
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"read\n"
        until("the cache is down", lambda: cached() <= 32 * MIB, 60, lambda: f"{cached()} {agent.text()}")


READ_ALL = """
import sys
with open(sys.argv[1], "rb", buffering=0) as file:
    while file.read(1 << 20):
        pass
print("read", flush=True)
sys.stdin.read()
"""
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


@contextlib.contextmanager
def loop_device(size: int) -> Iterator[str]:
    """A block device of that size on a file in memory, or a skip with the reason."""
    store = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp") / f"koordlet-loop-{os.getpid()}"
    try:
        with store.open("wb") as file:
            file.truncate(size)
            os.posix_fallocate(file.fileno(), 0, size)
        made = subprocess.run(["losetup", "-f", "--show", str(store)], capture_output=True, text=True, timeout=30)
        if made.returncode:
            pytest.skip(f"no loop device here: {made.stderr.strip()}")
        device = made.stdout.strip()
        try:
            yield device
        finally:
            subprocess.run(["losetup", "-d", device], check=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("losetup is not installed")
    finally:
        store.unlink(missing_ok=True)


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
        pods = {}
        for pod in run["pods"]:
            annotations = {k: json.dumps(v) for k, v in pod.get("annotations", {}).items()}
            pods[pod["name"]] = node.add_pod(
                pod["name"], pod["labels"]["koordinator.sh/qosClass"], annotations=annotations
            )
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


SYSCTLS = ("vm/min_free_kbytes", "vm/watermark_scale_factor")


def copied_proc(root: Path) -> Path:
    """The machine's /proc with settings of our own in place of the real ones."""
    root.mkdir()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() and entry.name != "sys":
            (root / entry.name).symlink_to(entry)
    for name, text in zip(SYSCTLS, ("67584", "10"), strict=True):
        (root / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys" / name).write_text(text + "\n")
    return root


def test_system_strategy(node: Node, tmp_path: Path) -> None:
    """Recorded 125829 and 20, kept through values out of range. Removed and on stop ours gives them back (seen 24)."""
    run = json.loads((OBSERVED / "system-strategy.json").read_text())
    bad, removed = run["steps"]
    root = Path("/proc") if GUEST else copied_proc(tmp_path / "proc")
    capacity = {"kind": "Node", "metadata": {"name": "rig"}, "status": {"capacity": {"cpu": CPUS, "memory": "24Gi"}}}
    (node.tmp / "node.json").write_text(json.dumps(capacity))
    node.write_slo(run["nodeslo"])

    def values() -> list[str]:
        return [(root / "sys" / name).read_text().strip() for name in SYSCTLS]

    before = values()
    roots = () if GUEST else (f"-proc-root-dir={root}",)
    with node.agent("-feature-gates=SystemConfig=true", f"--node={node.tmp}/node.json", *roots) as agent:
        until("recorded values", lambda: values() == ["125829", "20"], 10, agent.text)
        node.write_slo(bad["nodeslo"])
        time.sleep(3)
        assert values() == ["125829", "20"]
        node.write_slo(removed["nodeslo"])
        until("given back", lambda: values() == before, 10, agent.text)
        node.write_slo(run["nodeslo"])
        until("again", lambda: values() == ["125829", "20"], 10, agent.text)
        assert agent.stop() == 0
        assert values() == before


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
