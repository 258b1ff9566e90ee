"""The agent's resctrl parts on the lab: a small cgroup tree with made-up tasks, the strategy and the applier."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from koordlet.act.resctrl import ResctrlApplier
from koordlet.act.resctrl_state import State
from koordlet.act.resctrl_tree import ResctrlTree
from koordlet.decide.resctrl import RESCTRL
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.resctrl import read_resctrl
from koordlet.model.audit import AuditRecord
from koordlet.model.effect import EffectReport
from koordlet.model.hardware import Hardware
from koordlet.model.pod import Container, Pod, PodSet
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.resctrl import PodResctrl
from koordlet.model.settings import PodSettings
from koordlet.model.slo import NodeSlo, ResctrlQos
from koordlet.model.view import NodeView, Policy
from tests.labs.resctrl.lab import Lab

FIRST_TID = 5_000_000
FOUR = "0={0};1={0};2={0};3={0}"
ROME = ";".join(f"{n}={{0}}" for n in (*range(8), *range(16, 24)))
SCHEMATA = {  # shape: what BE's group says with ways 0-30 % and bandwidth 50 %
    "intel": {"L3": "0=f;1=f", "MB": "0=50;1=50"},
    "intel-cdp": {"L3CODE": "0=f;1=f", "L3DATA": "0=f;1=f", "MB": "0=50;1=50"},
    "intel-mbps": {"L3": "0=3f;1=3f", "MB": "0=4294967295;1=4294967295"},
    "intel-16": {"L3": "0=f;1=f", "MB": "0=50;1=50"},
    "intel-sparse": {"L3": "0=1f;1=1f", "MB": "0=50;1=50"},
    "haswell": {"L3": "0=3f;1=3f"},
    "intel-l2": {"L2": FOUR.format("7")},
    "intel-l2cdp": {"L2CODE": FOUR.format("7"), "L2DATA": FOUR.format("7")},
    "intel-snc": {"L3": "0=f;1=f", "MB": "0=50;1=50"},
    "amd-smba": {"L3": FOUR.format("1f"), "MB": FOUR.format("80"), "SMBA": FOUR.format("2048")},
    "amd-two-sockets": {"L3": ROME.format("1f"), "MB": ROME.format("80")},
    "few-rmids": {"L3": "0=f;1=f", "MB": "0=50;1=50"},
}


def slo(lsr: ResctrlQos | None = None, ls: ResctrlQos | None = None, be: ResctrlQos | None = None) -> NodeSlo:
    off = ResctrlQos()
    return NodeSlo(lsr_resctrl=lsr or off, ls_resctrl=ls or off, be_resctrl=be or off)


BE_30_50 = ResctrlQos(True, 0, 30, 50)
LS_FULL = ResctrlQos(True, 0, 100, 100)


@dataclass
class Agent:
    """One agent on one machine of the lab. `pods`: what a source would say."""

    lab: Lab
    work: Path
    tree_type: Callable[[Path], ResctrlTree] = ResctrlTree

    def __post_init__(self) -> None:
        self.now_s = 1000.0
        self.revision = 0
        self.next_tid = FIRST_TID
        self.pods: dict[str, Pod] = {}
        self.audit: list[AuditRecord] = []
        (self.work / "proc").mkdir(exist_ok=True)
        shutil.copy(self.lab.mounts, self.work / "proc/mounts")
        self.host = Host(
            cgroup_root=self.work / "cgroup",
            sys_root=self.work,
            sys_fs_root=self.lab.mount.parent,
            proc_root=self.work / "proc",
            var_run_root=self.work,
            run_root=self.work,
            kubelet_root=self.work,
            version=CgroupVersion.V2,
        )
        self.info = read_resctrl(self.host)
        self.policy = Policy(slo=slo(be=BE_30_50), gates=frozenset({"RdtResctrl", "Resctrl"}))
        self.start()

    def start(self) -> None:
        """Also again: as after a crash, with what the state file says."""
        self.state: Any = RESCTRL.initial()
        self.tree = self.tree_type(self.lab.mount)
        self.record = State(self.work / "resctrl.json", "boot")
        self.applier = ResctrlApplier(self.host, self.record, self.audit.append, self.tree)

    def pod(self, uid: str, qos: Qos = Qos.BE, tasks: int = 2, resctrl: PodResctrl | None = None) -> Pod:
        """A pod with one container; the sandbox's and the container's tasks exist on the machine."""
        cgroup = f"kubepods/pod{uid}"
        self.tasks(f"{cgroup}/pause", 1)
        self.tasks(f"{cgroup}/main", tasks)
        (self.work / "cgroup" / cgroup / "cgroup.threads").write_text("")
        made = Pod(
            uid=uid,
            namespace="ns",
            name=uid,
            cgroup=cgroup,
            kube_qos=KubeQos.BURSTABLE,
            qos=qos,
            containers=(Container("main", id=f"c://{uid}", cgroup=f"{cgroup}/main", running=True),),
            settings=PodSettings(resctrl=resctrl),
        )
        self.put(made)
        return made

    def put(self, pod: Pod) -> None:
        self.pods[pod.uid] = pod
        self.revision += 1

    def drop(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        for tid in self.tids(pod.cgroup):
            self.lab.exit(tid)
        shutil.rmtree(self.work / "cgroup" / pod.cgroup)
        self.revision += 1

    def tasks(self, cgroup: str, count: int) -> list[int]:
        """New tasks in a cgroup, as the runtime starts them: they come from the root group."""
        directory = self.work / "cgroup" / cgroup
        directory.mkdir(parents=True, exist_ok=True)
        ids = list(range(self.next_tid, self.next_tid + count))
        self.next_tid += count
        for tid in ids:
            self.lab.fork(tid)
        with (directory / "cgroup.threads").open("a") as file:
            file.writelines(f"{tid}\n" for tid in ids)
        return ids

    def tids(self, cgroup: str) -> list[int]:
        files = (self.work / "cgroup" / cgroup).rglob("cgroup.threads")
        return sorted(int(line) for file in files for line in file.read_text().split())

    def tick(self, after_s: float = 1.0) -> EffectReport:
        self.now_s += after_s
        view = NodeView(
            now_s=self.now_s,
            pods=PodSet(tuple(self.pods.values()), self.revision, self.now_s),
            hardware=Hardware(resctrl=self.info),
        )
        outcome = RESCTRL.decide(view, self.policy, self.state, self.now_s)
        self.state = outcome.state
        return self.applier.apply(outcome.effects, self.now_s)

    def ask(self, **changes: Any) -> None:
        self.policy = replace(self.policy, **changes)

    def schemata(self, group: str) -> dict[str, str]:
        text = (self.lab.mount / group / "schemata").read_text()
        return dict(line.strip().split(":", 1) for line in text.splitlines())

    def members(self, group: str) -> list[int]:
        lines = (self.lab.mount / group / "tasks").read_text().split()
        return sorted(int(line) for line in lines if int(line) >= FIRST_TID)

    def groups(self) -> set[str]:
        fixed = {"info", "mon_groups", "mon_data"}
        return {p.name for p in self.lab.mount.iterdir() if p.is_dir() and p.name not in fixed}


def picture(mount: Path) -> dict[str, str]:
    """Every file that a person could change, and every directory: what must be as before after an undo."""
    found: dict[str, str] = {}
    for directory, _, files in os.walk(mount):
        where = Path(directory)
        found[str(where.relative_to(mount))] = "directory"
        for name in files:
            if name in ("schemata", "tasks", "cpus", "mode"):
                path = where / name
                text = path.read_text()
                if name == "tasks":
                    text = " ".join(sorted((t for t in text.split() if int(t) >= FIRST_TID), key=int))
                found[str(path.relative_to(mount))] = text
    return found


Make = Callable[..., Agent]
