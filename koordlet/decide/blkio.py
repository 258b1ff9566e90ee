"""Block I/O QoS: limits and weights of BE and of single pods per disk, the cost model of a disk for all. Pure. (11)

Each disk's line in each file is a knob of its own. What is not asked for any more is not named, and act gives that line
back. A block that stands for no disk is told and left out; the others hold.

cgroup v1 counts every group by itself (kernel: blk-throttle's hierarchy needs v2), so a limit on the BE root or a pod
would hold nobody: there each container gets it, too, and may use it alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from koordlet.model.blkio import BlkioClasses, Block, BlockDevices, BlockType, IoCfg
from koordlet.model.knob import Decision, Knob
from koordlet.model.places import inside
from koordlet.model.pod import Pod
from koordlet.model.slo import NodeSlo
from koordlet.model.support import Support
from koordlet.model.view import NodeView, Outcome, Policy
from koordlet.model.why import stages

NAME: Final = "blkio"
GATE: Final = "BlkIOReconcile"
_RATES: Final = (
    (Knob.IO_READ_BPS, "read_bps"),
    (Knob.IO_WRITE_BPS, "write_bps"),
    (Knob.IO_READ_IOPS, "read_iops"),
    (Knob.IO_WRITE_IOPS, "write_iops"),
)
_MODEL_KEYS: Final = ("rbps", "rseqiops", "rrandiops", "wbps", "wseqiops", "wrandiops")


@dataclass(frozen=True, slots=True)
class State:
    revision: int = -1
    classes: BlkioClasses | None = None
    devices: BlockDevices | None = None
    support: Support | None = None
    roots: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    faults: tuple[str, ...] = ()


class BlkioQos:
    """The strategy object; it holds nothing."""

    name: str = NAME

    def initial(self) -> State:
        return State()

    def decide(self, view: NodeView, policy: Policy, state: State, now_s: float) -> Outcome[State]:
        if GATE not in policy.gates or policy.slo is None:
            return Outcome((), State(), until_s=math.inf)
        roots = tuple(root.path for root in view.be_roots)
        if (
            state.revision == view.pods.revision
            and state.classes == policy.slo.blkio
            and state.devices is view.blocks
            and state.support is view.support
            and state.roots == roots
        ):
            return Outcome(state.decisions, state, until_s=math.inf)
        faults: dict[str, None] = {}
        decisions = tuple(_all(view, policy.slo, roots, faults))
        if decisions == state.decisions:
            decisions = state.decisions
        after = State(view.pods.revision, policy.slo.blkio, view.blocks, view.support, roots, decisions, tuple(faults))
        notes = tuple(fault for fault in faults if fault not in state.faults)
        return Outcome(decisions, after, notes=notes, until_s=math.inf)


BLKIO: Final = BlkioQos()


def _all(view: NodeView, slo: NodeSlo, roots: tuple[str, ...], faults: dict[str, None]) -> Iterator[Decision]:
    classes, seen = slo.blkio, set[tuple[str, Knob]]()
    for name in classes.refused:
        faults[f"{name}.blkioQOS: only beClass and cgroupRoot may have blocks; ignored"] = None
    wishes: list[tuple[str, Block, tuple[str, ...]]] = []
    for block in classes.be:
        disks = _disks(view.blocks, block, None, faults)
        wishes += [(target, block, disks) for target in _be_targets(view, roots)]
    for pod in view.pods.pods:
        # compat: a pod without a class of its own is left alone
        if pod.settings.blkio and pod.qos is not None and pod.phase == "Running" and pod.cgroup:
            for block in pod.settings.blkio:
                disks = _disks(view.blocks, block, pod, faults)
                wishes += [(target, block, disks) for target in (pod.cgroup, *_alone(view, pod))]
    for target, block, disks in wishes:
        for disk in disks:
            for decision in _limits(f"{target}/{disk}", block, disk in view.blocks.bfq, view.support):
                if decision.key not in seen:  # two names of one disk: the first block counts
                    seen.add(decision.key)
                    yield decision
    for block in classes.root:
        for disk in _disks(view.blocks, block, None, faults):
            for decision in _cost(disk, block, faults):
                if decision.key not in seen:
                    seen.add(decision.key)
                    yield decision


def _be_targets(view: NodeView, roots: tuple[str, ...]) -> tuple[str, ...]:
    below = (
        target
        for pod in view.pods.pods
        if pod.active and pod.is_be and any(inside(pod.cgroup, root) for root in roots)
        for target in _alone(view, pod)
    )
    return (*roots, *below)


def _alone(view: NodeView, pod: Pod) -> tuple[str, ...]:
    """Groups of a pod that count by themselves."""
    return () if view.node.cgroup_v2 else tuple(c.cgroup for c in pod.containers if c.cgroup)


def _disks(found: BlockDevices, block: Block, pod: Pod | None, faults: dict[str, None]) -> tuple[str, ...]:
    uid = pod.uid if pod is not None and block.type is BlockType.POD_VOLUME else ""
    key = (block.type, block.name, uid)
    if key in found.faults:
        where = "beClass or cgroupRoot" if pod is None else f"pod {pod.key}"
        faults[f"{where}: block I/O limits of {block.type.value} {block.name[:64]!r}: {found.faults[key]}"] = None
    return found.disks.get(key, ())


def _limits(target: str, block: Block, bfq: bool, support: Support) -> Iterator[Decision]:
    why = stages(block=block.name[:64], type=block.type.value)
    for knob, field in _RATES:
        rate = getattr(block.cfg, field)
        if rate:  # 0 is no limit, which is what stands there without us
            yield Decision(target, knob, rate, why, NAME)
    if block.cfg.weight_percent is not None:
        knob = Knob.IO_BFQ_WEIGHT if bfq and support.has(Knob.IO_BFQ_WEIGHT) else Knob.IO_WEIGHT
        yield Decision(target, knob, block.cfg.weight_percent, why, NAME)


def _cost(disk: str, block: Block, faults: dict[str, None]) -> Iterator[Decision]:
    """Latency targets and cost model of a disk, in the kernel's own words; the root cgroup has them for all."""
    cfg, why = block.cfg, stages(block=block.name[:64], type=block.type.value)
    yield Decision(disk, Knob.IO_COST_QOS, latency_targets(cfg), why, NAME)
    model = cost_model(cfg)
    if model is None:
        missing = ", ".join(sorted(set(_MODEL_KEYS) - dict(cfg.model).keys()))
        faults[f"cgroupRoot: cost model of {block.name[:64]!r}: {missing} missing; the kernel's own model stays"] = None
    else:
        yield Decision(disk, Knob.IO_COST_MODEL, model, why, NAME)


def latency_targets(cfg: IoCfg) -> str:
    return (
        f"enable=1 ctrl=user rpct={cfg.read_latency_percent} rlat={cfg.read_latency_us}"
        f" wpct={cfg.write_latency_percent} wlat={cfg.write_latency_us}"
    )


def cost_model(cfg: IoCfg) -> str | None:
    """None where the user's model has gaps."""
    if not cfg.user_model:
        return "ctrl=auto"
    given = dict(cfg.model)
    if any(key not in given for key in _MODEL_KEYS):
        return None
    return "ctrl=user " + " ".join(f"{key}={given[key]}" for key in _MODEL_KEYS)
