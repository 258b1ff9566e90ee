"""What the reference did to pods' cgroups on a 2-CPU cgroup v1 node, against our rules, executor and a kernel that
refuses what v1 refuses. Where spec/seen.md corrects the reference, the corrected value stands here with its number.

Not compared: what other loops own.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from koordlet.config.gates import parse_gates
from koordlet.config.nodefile import check_node, node_facts
from koordlet.config.nodeslo import decode
from koordlet.config.schema import At
from koordlet.decide.burst import BURST
from koordlet.decide.podrules.reconcile import RECONCILER
from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.kubepods import Driver, Kubepods, host_app_dir
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob
from koordlet.model.pod import PodSet
from koordlet.model.slo import NodeSlo
from koordlet.model.view import NodeInfo, NodeView, Policy
from koordlet.sources.podlist import decode_pods
from koordlet.sources.sandboxdirs import SandboxDirs, subdirectories
from tests.hosts.act_node import FILES, Node
from tests.hosts.cases import case_json
from tests.unit.decide.build import flat

KUBEPODS = Kubepods(Driver.CGROUPFS)
KNOBS = {row[1]: knob for knob, row in FILES.items()}
ONLINE = CpuSet((0, 1))


class Rig:
    """A scenario's pods on a copied node; `tick` does what the engine does for this strategy."""

    def __init__(self, root: Path, name: str) -> None:
        self.name, self.recorded = name, case_json("observed-pods", f"{name}.json")
        scenario = self.recorded["scenario"]
        self.node = Node(root, CgroupVersion.V1)
        self.node.kernel.online = ONLINE
        self.pods: dict[str, Any] = {}
        self.made: set[str] = set()
        self.revision, self.state, self.burst = 0, RECONCILER.initial(), BURST.initial()
        args = dict(arg[1:].split("=", 1) for arg in scenario.get("args", ()))
        self.gates = parse_gates(args.get("feature-gates", "")).effective
        self.ratio: float | None = None
        for path in ("kubepods", "kubepods/burstable", "kubepods/besteffort", *scenario.get("dirs", ())):
            self.cgroup(path)
        self.facts = self.node_info(scenario.get("node", {}))
        self.slo = self.policy(scenario.get("nodeslo"))
        self.add(scenario["pods"])

    def node_info(self, node: dict[str, Any]) -> NodeInfo:
        metadata = {**node, "annotations": node.get("annotations", {})}
        annotations = {k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata["annotations"].items()}
        raw = check_node({"kind": "Node", "metadata": {"name": "rig", "annotations": annotations}}, At("node"))
        info = node_facts(raw, ONLINE, 1 << 34, flat(2), ratio_before=self.ratio).info
        self.ratio = info.cpu_normalization_ratio
        return info

    def policy(self, spec: Any) -> NodeSlo:
        return decode(spec, host_app_dir=lambda name, qos, path: host_app_dir(KUBEPODS, name, qos, path))

    def cgroup(self, path: str) -> None:
        if path not in self.made:
            self.made.add(path)
            self.node.tree.cgroup(path, {"cpuset.cpus": "0-1\n"})

    def add(self, pods: list[dict[str, Any]]) -> None:
        for pod in pods:
            self.pods[pod["name"]] = {**self.pods.get(pod["name"], {}), **pod}
        self.revision += 1
        for pod in self.decoded().pods:
            for path in (pod.cgroup, f"{pod.cgroup}/pause", *(c.cgroup for c in pod.containers if c.cgroup)):
                self.cgroup(path)
        for path, text in self.recorded["initial"].items():
            target, knob = self.place(path) or ("", Knob.FREEZE)
            if target in self.made and knob in KNOBS.values() and path not in getattr(self, "set", set()):
                self.node.foreign(target, knob, text)
        self.set = set(self.recorded["initial"])

    def decoded(self) -> PodSet:
        items = [_item(pod) for pod in self.pods.values()]
        pods = decode_pods(json.dumps({"items": items}).encode(), KUBEPODS).pods
        sandboxes = SandboxDirs(lambda cgroup: subdirectories(self.node.tree.host, cgroup))
        return PodSet(sandboxes.filled(pods), self.revision, 0.0)

    def place(self, recorded: str) -> tuple[str, Knob] | None:
        """`cpu/besteffort/b/main/cpu.shares` -> our cgroup and knob; None for what is not compared."""
        _, _, rest = recorded.partition("/")
        path, _, file = rest.rpartition("/")
        if file not in KNOBS:
            return None
        if file == "cpuset.cpus" and "besteffort" in path and self.name != "cpuset-other-qos":
            return None  # the suppress loop's
        if path.startswith("host:"):
            return path.removeprefix("host:"), KNOBS[file]
        parts = path.split("/")
        if len(parts) == 1:
            return None
        pod = next((pod for pod in self.decoded().pods if pod.name == parts[1]), None)
        if pod is None:
            return None
        if len(parts) == 2:
            return pod.cgroup, KNOBS[file]
        if parts[2] == "_sandbox":
            return (pod.sandbox_cgroup, Knob.CPUSET) if file == "cpuset.cpus" and pod.sandbox_cgroup else None
        cgroup = next((c.cgroup for c in pod.containers if c.name == parts[2]), "")
        return (cgroup, KNOBS[file]) if cgroup else None

    def tick(self) -> None:
        view = NodeView(
            now_s=self.node.now_s,
            node=self.facts,
            pods=self.decoded(),
            host_apps=self.slo.host_apps,
        )
        policy = Policy(slo=self.slo, gates=self.gates, hooked=True)
        outcome = RECONCILER.decide(view, policy, self.state, self.node.now_s)
        burst = BURST.decide(view, policy, self.burst, self.node.now_s)
        self.state, self.burst = outcome.state, burst.state
        self.node.now_s += 1
        self.node.executor.apply({"podrules": outcome.decisions, "burst": burst.decisions}, self.node.now_s)

    def step(self, step: dict[str, Any]) -> None:
        self.add(step.get("update", []) + step.get("add", []))
        for name in step.get("remove", ()):
            del self.pods[name]
            self.revision += 1
        if "node" in step:
            self.facts = self.node_info(step["node"])
        if "nodeslo" in step:
            self.slo = self.policy(step["nodeslo"])
        for path, value in step.get("set", {}).items():
            target, knob = self.place(path) or pytest.fail(path)
            self.node.foreign(target, knob, str(value))

    def values(self) -> dict[str, str]:
        """Every compared file of the recording's phases, as it reads now."""
        found = {}
        for phase in self.recorded["phases"]:
            for path in phase["changed"]:
                place = self.place(path)
                if place is not None:
                    found[path] = self.node.read(*place)
        return found


def _item(pod: dict[str, Any]) -> dict[str, Any]:
    def container(found: dict[str, Any]) -> dict[str, Any]:
        made = {"name": found["name"], "resources": {"requests": found.get("req", {}), "limits": found.get("lim", {})}}
        return {**made, **({"restartPolicy": "Always"} if found.get("sidecar") else {})}

    def status(found: dict[str, Any]) -> dict[str, Any]:
        number = zlib.crc32(f"{pod['name']}/{found['name']}/{pod.get('gen', 0)}".encode())
        return {"name": found["name"], "containerID": f"containerd://{number:064x}", "state": {"running": {}}}

    annotations = {k: v if isinstance(v, str) else json.dumps(v) for k, v in pod.get("annotations", {}).items()}
    init = pod.get("init", [])
    return {
        "metadata": {
            "name": pod["name"],
            "namespace": "default",
            "uid": f"{pod['name']}-{pod.get('gen', 0)}",
            "labels": pod.get("labels", {}),
            "annotations": annotations,
        },
        "spec": {
            "priority": pod.get("priority"),
            "containers": [container(c) for c in pod.get("containers", [])],
            "initContainers": [container(c) for c in init],
        },
        "status": {
            "phase": pod.get("phase", "Running"),
            "containerStatuses": [status(c) for c in pod.get("containers", [])],
            "initContainerStatuses": [status(c) for c in init if c.get("sidecar")],
        },
    }


LIMITLESS = "9223372036854771712"
SCENARIOS: dict[str, dict[int, dict[str, str]]] = {
    # name -> phase -> file -> corrected value
    "batch-1c": {},
    "batch-2c": {},
    "batch-init": {},
    "batch-limit-one": {},
    "batch-quantities": {},
    "batch-resize": {},
    "batch-drift": {},
    "new-pod": {},
    "recreate": {},
    "restart": {},
    "no-label": {},
    "gates-off": {},
    "host-app": {},
    "ls-numa": {},
    "ls-share-pool": {},
    # 18: a finished pod releases its CPUs at once
    "lsr-cpuset": {1: {f"cpuset/burstable/ls/{name}/cpuset.cpus": "0-1" for name in ("main", "_sandbox")}},
    # 12: within BE's set, which is the whole node here; 11: one owner of the quota
    "cpuset-other-qos": {
        0: {
            "cpuset/besteffort/be/main/cpuset.cpus": "1",
            "cpuset/besteffort/be/_sandbox/cpuset.cpus": "1",
        }
    },
    # 2: an allocation that cannot be honoured changes nothing
    "malformed": {
        0: {
            f"cpu/kubepods/{pod}{where}/cpu.cfs_quota_us": "100000"
            for pod in ("beyond", "form", "list")
            for where in ("", "/main")
        }
    },
    # hooks 4.4: switched off, the originals come back (the reference leaves LS pods scaled for ever)
    "normalization": {},
    # 10: one owner: no ratchet, no flapping
    "normalization-burst": {
        0: {"cpu/burstable/ls/cpu.cfs_quota_us": "66667", "cpu/burstable/ls/main/cpu.cfs_quota_us": "66667"}
    },
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_observed(name: str, tmp_path: Path) -> None:
    rig = Rig(tmp_path, name)
    steps = [{}, *rig.recorded["scenario"].get("steps", [])]
    expected: dict[str, str] = {}
    for number, (step, phase) in enumerate(zip(steps, rig.recorded["phases"], strict=True)):
        rig.step(step)
        ticks = 65 if "set" in step else 3  # drift of what is not new is looked for once a minute
        for _ in range(ticks):
            rig.tick()
        expected |= {path: values[-1] for path, values in phase["changed"].items() if rig.place(path)}
        expected |= SCENARIOS[name].get(number, {})
        gone = [pod["name"] for pod in step.get("update", []) if pod.get("phase") == "Succeeded"]
        expected = {path: value for path, value in expected.items() if path.split("/")[2] not in gone}
        if name == "normalization" and phase["note"] == "removed":
            expected |= {path: rig.recorded["initial"][path] for path in expected if "/burstable/" in path}
        found = rig.values()
        assert {path: found[path] for path in expected if path in found} == {
            path: value for path, value in expected.items() if path in found
        }
        assert rig.node.kernel.refused == [], "no write of ours is refused"
        settled = len(rig.node.kernel.writes)
        rig.tick()
        assert len(rig.node.kernel.writes) == settled, "a fixed point"


def test_mid_pods_get_what_they_ask_for(tmp_path: Path) -> None:
    """The reference leaves them at the least weight and without limit (F-15)."""
    rig = Rig(tmp_path, "mid")
    rig.tick()
    be = next(pod for pod in rig.decoded().pods if pod.name == "be")
    for target in (be.cgroup, be.containers[0].cgroup):
        read = [rig.node.read(target, knob) for knob in (Knob.CPU_SHARES, Knob.CPU_QUOTA, Knob.MEMORY_LIMIT)]
        assert read == ["1024", "100000", "268435456"]
