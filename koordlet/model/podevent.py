"""`PodEvent`: what a door (runtime hook, NRI) or the reconciler learned about one pod or container; `PodAnswer`: what
decide.podrules wants for it. The same answer whichever door asked. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from koordlet.model.cpuset import CpuSet
from koordlet.model.effect import Effect
from koordlet.model.knob import Decision
from koordlet.model.pod import Container, Pod
from koordlet.model.why import Why


class Hook(StrEnum):
    """Moments in a pod's life (spec/hooks 1.1), and the reconciler's own."""

    PRE_RUN_POD_SANDBOX = "PreRunPodSandbox"
    POST_STOP_POD_SANDBOX = "PostStopPodSandbox"
    PRE_CREATE_CONTAINER = "PreCreateContainer"
    PRE_START_CONTAINER = "PreStartContainer"
    POST_START_CONTAINER = "PostStartContainer"
    PRE_UPDATE_CONTAINER = "PreUpdateContainerResources"
    POST_STOP_CONTAINER = "PostStopContainer"
    RECONCILE = "Reconcile"


@dataclass(frozen=True, slots=True)
class Device:
    """A device node to inject. kind: "c" or "b"; mode 0 means the runtime's default."""

    path: str
    kind: str = "c"
    major: int = 0
    minor: int = 0
    mode: int = 0


@dataclass(frozen=True, slots=True)
class LinuxResources:
    """A sandbox's or container's resources as CRI and NRI name them; None is "not said". memory_limit_bytes: -1 is
    unlimited. unified: cgroup v2 file -> text."""

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    cpuset: CpuSet | None = None
    cpuset_mems: CpuSet | None = None
    memory_limit_bytes: int | None = None
    oom_score_adj: int | None = None
    unified: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodEvent:
    """container: None for a pod-level moment. asked: the resources that the runtime is about to apply, where the door
    tells. cgroup: the pod's or container's directory where known, "" before it exists. env: the container's
    environment as asked. pid: first process, where the door tells."""

    hook: Hook
    pod: Pod
    container: Container | None = None
    cgroup: str = ""
    asked: LinuxResources = field(default_factory=LinuxResources)
    env: dict[str, str] = field(default_factory=dict)
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """resources, env, devices, mounts: what the door's reply must carry, only what differs from what was asked.
    decisions and effects: what no reply can carry; act writes it (the cgroup must exist). why: per hook rule.
    resources.cpuset: an empty set lets go of a pinning (where the protocol can say so). resctrl_group: control group in
    which the tasks belong, None for no opinion. faults: one line per rule that failed. ahead: what must be in the
    kernel before the runtime goes on."""

    resources: LinuxResources = field(default_factory=LinuxResources)
    env: dict[str, str] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    mounts: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    annotations: dict[str, str] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    effects: tuple[Effect, ...] = ()
    why: Why = ()
    resctrl_group: str | None = None
    faults: tuple[str, ...] = ()
    ahead: tuple[Decision, ...] = ()
