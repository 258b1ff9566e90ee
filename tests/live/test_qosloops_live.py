"""CPU burst, memory QoS and system settings on real kernels: the recordings of the reference where it was right, the
corrected values where it was not (spec/seen.md), and what a clean stop leaves behind.

The machine's own settings are only touched inside the kernel lab's guest.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

from tests.live.loop import loop_device
from tests.live.node import CPUS, V2, Node, until
from tests.live.scenario import OBSERVED, Scenario

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
GUEST = bool(os.environ.get("KOORDLET_GUEST"))
MIB = 1 << 20


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
