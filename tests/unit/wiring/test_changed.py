"""What makes the loop ask for all of its inputs again, with the parts as the daemon puts them together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from koordlet.config import flags as config
from koordlet.inputs import KubepodsInput
from koordlet.model.pod import PodSet
from koordlet.model.view import NodeInfo, Policy
from koordlet.sources.local import LocalSource
from koordlet.sources.sandbox import Sandbox
from koordlet.wiring.beroots import BeInput
from koordlet.wiring.changes import make_changed
from koordlet.wiring.runtime import RuntimeDoors
from koordlet.wiring.sources import Sources
from tests.hosts.tree import HostTree, v1_two_sockets_ht

BE = "kubepods/besteffort"


class Node:
    """A kubelet's tree; pods, policy and node facts in files of one directory each."""

    def __init__(self, base: Path, *argv: str) -> None:
        self.tree: HostTree = v1_two_sockets_ht(base / "host")
        for cgroup in ("kubepods", "kubepods/burstable", BE):
            self.tree.cgroup(cgroup)
        self.given = base / "given"
        self.given.mkdir()
        for name in ("pods", "policy", "node"):
            (self.given / f"{name}.json").write_text("{}")
        named = [f"--{name}={self.given}/{name}.json" for name in ("pods", "policy", "node")]
        flags = config.parse([*named, "--cgroup-driver=cgroupfs", *argv], {})
        kubepods = KubepodsInput(flags, self.tree.host)
        self.be = BeInput(self.tree.host, kubepods, Policy, lambda now_s: NodeInfo())
        self.doors = RuntimeDoors(flags, kubepods, lambda: None, Policy, lambda stage, status, ms: None, {})
        self.now_s = 0.0
        local = LocalSource(flags.workloads, self.tree.host) if flags.workloads else None
        sources = Sources((), local, None, None)
        self.local = local
        self.changed = make_changed(flags, self.tree.host, kubepods, self.be, sources, self.doors, None)

    def tick(self) -> bool:
        """Whether everything is to be asked for in the next one."""
        self.now_s += 1
        return self.changed(self.now_s)

    def look(self) -> None:
        """As the loop does."""
        pods = PodSet((), 1, self.now_s)
        for path, kind in self.be.roots(pods, self.now_s):
            self.be.read(path, kind, pods, self.now_s)
        self.doors.poll(self.now_s)
        if self.local is not None:
            self.local.poll(self.now_s)

    def settle(self) -> None:
        self.look()
        for _ in range(2):
            if not self.tick():
                return
            self.look()
        assert not self.tick()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.settle()
    return made


def test_nothing_changes_by_itself(node: Node) -> None:
    assert [node.tick() for _ in range(3)] == [False] * 3
    node.look()
    assert not node.tick()


def _write(path: str, text: str) -> Callable[[Node], object]:
    return lambda node: node.tree.put(path, text)


@pytest.mark.parametrize(
    "change",
    [
        lambda node: (node.given / "pods.json").write_text('{"items":[]}'),
        lambda node: (node.given / "policy.json").unlink(),
        lambda node: (node.given / "fresh").rename(node.given / "node.json"),
        _write("sys/devices/system/cpu/online", "0-6\n"),
        _write("kubelet/cpu_manager_state", "{}"),
        _write(f"cgroup/cpu/{BE}/cpu.cfs_quota_us", "50000\n"),
        _write(f"cgroup/cpu/{BE}/cpu.shares", "1024000\n"),
        _write(f"cgroup/cpuset/{BE}/cpuset.cpus", "0-3\n"),
        lambda node: node.tree.cgroup(f"{BE}/pod-new"),
        lambda node: node.doors.pods.sandbox(Sandbox("u1", "shop", "web", "sb", "/kubepods/burstable/podu1")),
    ],
    ids=[
        "pods",
        "policy gone",
        "node facts",
        "a CPU goes",
        "checkpoint",
        "quota",
        "weight",
        "cpuset",
        "pod",
        "runtime",
    ],
)
def test_every_input_is_noticed_once(node: Node, change: Callable[[Node], object]) -> None:
    (node.given / "fresh").write_text("{}")
    node.settle()
    change(node)
    assert node.tick()
    node.settle()


def test_pods_of_a_runtime_in_two_ticks_running_are_both_noticed(node: Node) -> None:
    for number in range(3):
        node.doors.pods.sandbox(
            Sandbox(f"u{number}", "shop", "web", f"sb{number}", f"/kubepods/burstable/podu{number}")
        )
        assert node.tick()
        node.look()


def test_a_policy_behind_a_link_into_another_directory_is_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "real.json").write_text("{}")
    (tmp_path / "link.json").symlink_to(tmp_path / "elsewhere" / "real.json")
    node = Node(tmp_path, f"--policy={tmp_path}/link.json")
    node.settle()
    (tmp_path / "elsewhere" / "real.json").write_text('{"spec":{}}')
    assert node.tick()


def test_pods_that_run_change_nothing(node: Node) -> None:
    node.tree.cgroup(f"{BE}/pod")
    node.settle()
    node.tree.put(f"cgroup/cpuacct/{BE}/pod/cpuacct.usage", "123\n")
    node.tree.put(f"cgroup/cpuacct/{BE}/cpuacct.usage", "123\n")
    assert not node.tick()


def test_while_a_root_is_missing_everything_counts_as_changed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for subsystem in ("cpu", "cpuset"):
        (node.tree.root / f"cgroup/{subsystem}/{BE}").rename(tmp_path / subsystem)
    node.look()
    assert [node.tick() for _ in range(3)] == [True] * 3
    for subsystem in ("cpu", "cpuset"):
        (tmp_path / subsystem).rename(node.tree.root / f"cgroup/{subsystem}/{BE}")
    node.settle()


def test_declared_workloads_are_searched_for_in_every_tick(tmp_path: Path) -> None:
    declared = tmp_path / "workloads"
    declared.mkdir()
    node = Node(tmp_path, f"--workloads={declared}")
    node.settle()
    (declared / "web.yaml").write_text(
        "apiVersion: koordlet.local/v1\nkind: LocalWorkloadList\nitems:\n"
        "- name: web\n  qos: LS\n  match:\n    cgroup: web.slice\n"
    )
    assert node.tick()
    node.settle()
    assert node.local is not None
    assert node.local.errors() == ()
    assert [node.tick() for _ in range(3)] == [False] * 3
    node.tree.cgroup("web.slice")
    assert any(node.tick() for _ in range(3))
    node.settle()
    assert [pod.name for pod in node.local.poll(node.now_s).pods] == ["web"]
