"""BE CPU suppress: what of the node is lent to best-effort work now, by quota or by cpuset. Pure. (spec 3)

The loop: read demand -> target S -> smooth, surge, pressure -> floor -> slew -> knobs of one policy. Old data
freezes it, very old data moves BE to a safe floor. Switched off it names nothing, and act restores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from koordlet.decide import slew, suppress_cpuset, suppress_pressure, suppress_quota, target
from koordlet.decide.freshness import Trust, judge
from koordlet.decide.pick import choose
from koordlet.decide.slew import Ramp
from koordlet.decide.suppress_cpuset import Pools
from koordlet.decide.suppress_pressure import Pressure
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Decision, Knob
from koordlet.model.pod import Tree
from koordlet.model.slo import SuppressPolicy, Threshold
from koordlet.model.units import DEFAULT_PERIOD_US
from koordlet.model.view import BeRoot, NodeView, Outcome, Policy, SurgePlan
from koordlet.model.why import Why, stages

NAME: Final = "suppress"
GATE: Final = "BECPUSuppress"
MANAGER_GATE: Final = "BECPUManager"

_FAULT_CAPACITY: Final = "node CPU capacity is unknown: BE CPU suppress keeps what it has"
_FAULT_NO_USAGE: Final = "node CPU usage was never read: BE CPU suppress waits"
_FIRST_LOOK: Final = ""
_FAULT_FROZEN: Final = "usage readings are missing or older than 3 intervals: the BE CPU allowance is frozen"
_FAULT_FLOOR: Final = "usage readings are older than 15 s: BE CPU goes to its safe floor"
_FAULT_TOPOLOGY: Final = "CPU topology is unknown: the BE cpuset stays as it is"
_FAULT_KUBELET: Final = "kubelet CPU manager policy is malformed: the BE cpuset stays as it is"
_FAULT_NO_CPU: Final = "LSE pods and reservations leave no CPU to BE: the BE cpuset stays as it is"
_FAULT_PRESSURE: Final = "LS CPU pressure does not fall when BE is cut: ignored for 60 s"


@dataclass(frozen=True, slots=True)
class State:
    """allowance_mcpu: what BE may use, None before the first decision. quota_us (total) or cpus: the same in the
    policy's own unit, the other is None. own_quotas: of groups below the roots, before ours, as seen in these roots.
    shape: what decisions were built from, so that equal answers are the same object. faults: told already."""

    decisions: tuple[Decision, ...] = ()
    shape: tuple[object, ...] = ()
    policy: SuppressPolicy | None = None
    allowance_mcpu: int | None = None
    quota_us: int | None = None
    cpus: CpuSet | None = None
    average_mcpu: float | None = None
    sample_at_s: float | None = None
    ramp: Ramp = field(default_factory=Ramp)
    pressure: Pressure = field(default_factory=Pressure)
    pools: Pools | None = None
    own_quotas: Mapping[str, int] = field(default_factory=dict)
    roots: tuple[BeRoot, ...] = ()
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Goal:
    """Where the allowance should go, and what of the next state is known by then. new_sample: the kernel's values were
    read after our last decision."""

    target_mcpu: int
    may_grow: bool
    new_sample: bool
    why: Why
    faults: tuple[str, ...]
    average_mcpu: float | None
    sample_at_s: float | None
    ramp: Ramp
    pressure: Pressure


class Suppress:
    """The strategy object; it holds nothing."""

    name: str = NAME

    def initial(self) -> State:
        return State()

    def decide(self, view: NodeView, policy: Policy, state: State, now_s: float) -> Outcome[State]:
        threshold = _threshold(policy)
        if threshold is None or not view.be_roots:
            return Outcome((), State())
        capacity = view.node.capacity_mcpu or 0
        if capacity <= 0:
            return _keep(view, state, _FAULT_CAPACITY)
        demand = target.read_demand(view.usage, view.node.reserved_mcpu)
        at_s = demand.at_s if demand is not None else state.sample_at_s
        if at_s is None:
            # A rate takes two looks: that the first tick has none is no fault.
            return _keep(view, state, _FAULT_NO_USAGE if state.faults else _FIRST_LOOK)
        trust = judge(now_s - at_s, view.interval_s)
        if trust is Trust.FLOOR and state.allowance_mcpu is not None:
            goal = _floor_goal(state.allowance_mcpu, capacity, threshold, policy, state)
        elif trust is not Trust.FRESH or demand is None:
            return _keep(view, state, _FAULT_FROZEN)
        else:
            goal = _fresh_goal(view, demand, capacity, threshold, state, now_s)
        if threshold.cpu_suppress_policy is SuppressPolicy.CFS_QUOTA:
            return _by_quota(view, threshold, capacity, goal, state, now_s)
        return _by_cpuset(view, threshold, capacity, goal, state, now_s)


SUPPRESS: Final = Suppress()


def _threshold(policy: Policy) -> Threshold | None:
    """The section to obey, None when suppress is off. BECPUManager takes the loop's place where it is on."""
    if policy.slo is None or not policy.slo.threshold.enable:
        return None
    return policy.slo.threshold if GATE in policy.gates and MANAGER_GATE not in policy.gates else None


def _fresh_goal(
    view: NodeView, demand: target.Demand, capacity: int, threshold: Threshold, state: State, now_s: float
) -> _Goal:
    """Target S from smoothed demand (fast attack: the larger of last and average), surge and pressure."""
    new_sample = state.sample_at_s is None or demand.at_s > state.sample_at_s
    average = target.ewma_mcpu(state.average_mcpu, demand.total_mcpu) if new_sample else state.average_mcpu
    demand_mcpu = max(demand.total_mcpu, int(average or 0))
    surge = target.surge_mcpu(view.usage.surge_mcpu, demand.total_mcpu, capacity, now_s, view.interval_s)
    if surge is not None:
        demand_mcpu = max(demand_mcpu, surge)
    ceiling = target.ceiling_mcpu(capacity, threshold)
    wanted = ceiling - demand_mcpu
    why = stages(
        capacity_mcpu=capacity,
        ceiling_mcpu=ceiling,
        nonbe_pods_mcpu=demand.nonbe_pods_mcpu,
        nonbe_hosts_mcpu=demand.nonbe_hosts_mcpu,
        system_mcpu=demand.system_mcpu,
        demand_mcpu=demand_mcpu,
    )
    if surge is not None:
        why += stages(surge_mcpu=surge)
    why += stages(target_mcpu=wanted)

    above_floor = state.allowance_mcpu is not None and state.allowance_mcpu > _floor_mcpu(view, capacity, threshold)
    reading = view.usage.ls_pressure_permyriad
    pressure, cut = suppress_pressure.react(state.pressure, reading, above_floor, now_s, view.interval_s)
    if cut and state.allowance_mcpu is not None and reading is not None:
        wanted = min(wanted, state.allowance_mcpu - capacity // slew.GROWTH_DIVISOR)
        why += stages(ls_pressure_permyriad=int(reading.value), cut_to_mcpu=wanted)
    floored = target.floored_mcpu(wanted, capacity, threshold)
    if floored != wanted:
        why += stages(floored_mcpu=floored)

    permitted = slew.permits(state.ramp, demand.at_s, view.interval_s)
    return _Goal(
        target_mcpu=floored,
        may_grow=permitted and not suppress_pressure.holds(pressure, now_s),
        new_sample=new_sample,
        why=why,
        faults=(_FAULT_PRESSURE,) if suppress_pressure.ignored(pressure, now_s) else (),
        average_mcpu=average,
        sample_at_s=demand.at_s,
        ramp=slew.permitted(state.ramp, demand.at_s) if permitted else state.ramp,
        pressure=pressure,
    )


def _floor_goal(allowance: int, capacity: int, threshold: Threshold, policy: Policy, state: State) -> _Goal:
    """The safe floor for blind flight, never above what BE has. Growth starts anew from it, step by step."""
    percent = threshold.cpu_suppress_min_percent
    floor = capacity * (policy.floor_percent if percent is None else percent) // 100
    why = stages(capacity_mcpu=capacity, stale="usage older than 15 s", floor_mcpu=floor, last_mcpu=allowance)
    return _Goal(
        target_mcpu=min(floor, allowance),
        may_grow=False,
        new_sample=False,
        why=why,
        faults=(_FAULT_FLOOR,),
        average_mcpu=state.average_mcpu,
        sample_at_s=state.sample_at_s,
        ramp=Ramp(state.ramp.permitted_at_s),
        pressure=state.pressure,
    )


def _by_quota(
    view: NodeView, threshold: Threshold, capacity: int, goal: _Goal, state: State, now_s: float
) -> Outcome[State]:
    held = {decision.target for decision in state.decisions if decision.knob is Knob.CPU_QUOTA}
    roots = [root for root in view.be_roots if root.quota_us is not None or root.path in held]
    if not roots:
        return _keep(view, state, f"no quota of a BE root is readable ({view.be_roots[0].path}): no cap")
    known = state.quota_us is not None and not goal.new_sample
    old = state.quota_us if known else suppress_quota.present_us(roots, state.quota_us)
    total, rule, ramp = suppress_quota.step(
        goal.target_mcpu, old, capacity, len(roots), goal.ramp, goal.may_grow, now_s
    )
    shares = suppress_quota.split(total, roots)
    values = [suppress_quota.in_period(us, root) for us, root in zip(shares, roots, strict=True)]
    own = state.own_quotas
    if view.be_roots != state.roots:  # equal ones are the same objects: nothing below them is looked at
        own = suppress_quota.own_quotas(roots, own)
    shape = ("quota", own, tuple((root.path, value) for root, value in zip(roots, values, strict=True)))
    decisions = state.decisions
    if shape != state.shape:
        why = goal.why + stages(
            old_us=-1 if old is None else old, slewed_us=total, policy=SuppressPolicy.CFS_QUOTA.value, rule=rule
        )
        decisions = tuple(
            Decision(root.path, Knob.CPU_QUOTA, value, why, NAME, hot=True)
            for root, value in zip(roots, values, strict=True)
        )
        beside = stages(policy=SuppressPolicy.CFS_QUOTA.value, rule="makes room for the root's quota")
        decisions += tuple(
            Decision(path, Knob.CPU_QUOTA, us, beside, NAME)
            for root, value in zip(roots, values, strict=True)
            for path, us in suppress_quota.below(root, value, own)
        )
    after = State(
        policy=SuppressPolicy.CFS_QUOTA,
        decisions=decisions,
        shape=shape,
        allowance_mcpu=total * 1000 // DEFAULT_PERIOD_US,
        quota_us=total,
        average_mcpu=goal.average_mcpu,
        sample_at_s=goal.sample_at_s,
        ramp=ramp,
        pressure=goal.pressure,
        pools=state.pools,
        own_quotas=own,
        roots=view.be_roots,
        faults=goal.faults,
    )
    return _outcome(view, threshold, capacity, state.faults, after)


def _by_cpuset(
    view: NodeView, threshold: Threshold, capacity: int, goal: _Goal, state: State, now_s: float
) -> Outcome[State]:
    topology = view.node.topology
    if topology is None:
        return _keep(view, state, _FAULT_TOPOLOGY)
    kubelet = view.node.kubelet_policy
    if kubelet is None and any(root.tree is Tree.KUBELET for root in view.be_roots):
        return _keep(view, state, _FAULT_KUBELET)
    pools = suppress_cpuset.pools_of(view, topology, state.pools)
    held = state.cpus
    old = suppress_cpuset.kernel_size(view.be_roots) if held is None else len(held)
    count, rule, ramp = suppress_cpuset.step(goal.target_mcpu, old, pools, goal.ramp, goal.may_grow, now_s)
    if count == 0:
        return _keep(view, replace(state, pools=pools), _FAULT_NO_CPU)
    # The first choice does not look at the kernel's set, as in the reference; later ones keep our own.
    chosen = choose(count, pools.lsr, pools.ls, held or CpuSet(), topology)
    levels = tuple((root.path, root.levels) for root in view.be_roots)
    shape = ("cpuset", chosen, pools.parents, pools.allocations, kubelet, levels)
    decisions = state.decisions
    if shape != state.shape:
        why = goal.why + stages(
            old_cpus=-1 if old is None else old,
            slewed_cpus=count,
            lsr_cpus=len(chosen & pools.lsr),
            usable_cpus=len(pools.lsr | pools.ls),
            policy=SuppressPolicy.CPUSET.value,
            rule=rule,
        )
        decisions = suppress_cpuset.placed(view.be_roots, kubelet or "none", chosen, pools, why, NAME)
    after = State(
        policy=SuppressPolicy.CPUSET,
        decisions=decisions,
        shape=shape,
        allowance_mcpu=count * 1000,
        cpus=chosen,
        average_mcpu=goal.average_mcpu,
        sample_at_s=goal.sample_at_s,
        ramp=ramp,
        pressure=goal.pressure,
        pools=pools,
        faults=goal.faults,
    )
    return _outcome(view, threshold, capacity, state.faults, after)


def _floor_mcpu(view: NodeView, capacity: int, threshold: Threshold) -> int:
    """The least that BE keeps under the policy in force."""
    if threshold.cpu_suppress_policy is SuppressPolicy.CFS_QUOTA:
        least = suppress_quota.floor_us(len(view.be_roots)) * 1000 // DEFAULT_PERIOD_US
    else:
        least = suppress_cpuset.MIN_CPUS * 1000
    return target.floored_mcpu(least, capacity, threshold)


def _keep(view: NodeView, state: State, fault: str) -> Outcome[State]:
    """No judgement this round: what was wanted stays wanted, and the fault is told when it begins."""
    notes = () if fault in state.faults or not fault else (fault,)
    return Outcome(state.decisions, replace(state, faults=(fault,)), gauges=_gauges(view, state), notes=notes)


def _outcome(
    view: NodeView, threshold: Threshold, capacity: int, known: tuple[str, ...], state: State
) -> Outcome[State]:
    """known: faults of the round before."""
    return Outcome(
        state.decisions,
        state,
        gauges=_gauges(view, state),
        notes=tuple(fault for fault in state.faults if fault not in known),
        plan=None if state.faults == (_FAULT_FLOOR,) else _plan(view, threshold, capacity, state),
    )


def _plan(view: NodeView, threshold: Threshold, capacity: int, state: State) -> SurgePlan | None:
    """When to look again before the next tick; None at the floor, where nothing can be taken back any more."""
    allowance = state.allowance_mcpu
    if allowance is None or allowance <= _floor_mcpu(view, capacity, threshold):
        return None
    return SurgePlan(
        nonbe_mcpu=target.ceiling_mcpu(capacity, threshold) - allowance + target.margin_mcpu(capacity),
        pressure_permyriad=None if view.usage.ls_pressure_permyriad is None else suppress_pressure.LIMIT_PERMYRIAD,
    )


def _gauges(view: NodeView, state: State) -> tuple[tuple[str, tuple[tuple[str, str], ...], float], ...]:
    gauges: list[tuple[str, tuple[tuple[str, str], ...], float]] = []
    if state.policy is not None and state.allowance_mcpu is not None:
        gauges.append(("be_suppress_cpu_cores", (("type", state.policy.value),), state.allowance_mcpu / 1000))
    if view.usage.nonbe_pods_mcpu is not None:
        gauges.append(("be_suppress_ls_used_cpu_cores", (), view.usage.nonbe_pods_mcpu.value / 1000))
    return tuple(gauges)
