"""CPU burst: online containers use what they saved (kernel burst), and more quota while the node has room. Pure. (7)

A tick asks three things: what room the share pool has, which containers were throttled, who must give back. Quotas
grow most throttled first within the room that is left, and shrink largest excess first by what is missing, so
that containers do not rise and fall together. A container that is back at its base is not named, and act restores it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from koordlet.decide import burst_tokens
from koordlet.decide.burst_plan import NAME, Entry, Labels, Plan, make_plan
from koordlet.decide.burst_room import CALM_S, COOLING, RELIEF, Pool, Room, room
from koordlet.decide.burst_tokens import Tokens
from koordlet.decide.freshness import FRESH_INTERVALS
from koordlet.model.burst import CpuBurst
from koordlet.model.knob import Decision, Knob
from koordlet.model.units import DEFAULT_PERIOD_US
from koordlet.model.view import NodeView, Outcome, Policy, Reading
from koordlet.model.why import stages

GATE: Final = "CPUBurst"
LEAST_GRANT_MCPU: Final = 10
RESIZE_S: Final = 30.0
"""After a limit changed the pod keeps to it for so long. On cgroup v1 the kubelet cannot set a pod's quota below a
container's that burst: it is refused, tries again some ten seconds later, and then nothing may be in its way."""
IDLE_ACCOUNT_S: Final = 5.0
"""Accounts of containers at their base are kept this seldom."""


class Op(Enum):
    UP = "up"
    DOWN = "down"
    REMAIN = "remain"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class State:
    """quotas: us of the containers above their base, by key. shrunk_s: when an overload last took some of them back.
    first_base_us: base of each group when we first wrote its quota; where the limit changed since, restoring the
    recorded bytes would bring the old limit back. resized_s: by pod uid, when a limit of it changed lately."""

    made_from: tuple[object, ...] = ()
    plan: Plan = field(default_factory=Plan)
    quotas: Mapping[str, int] = field(default_factory=dict)
    tokens: Mapping[str, Tokens] = field(default_factory=dict)
    pool: Pool = field(default_factory=Pool)
    shrunk_s: float = float("-inf")
    first_base_us: Mapping[str, int] = field(default_factory=dict)
    resized_s: Mapping[str, float] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    gauges: tuple[tuple[str, Labels, float], ...] = ()


class Burst:
    """The strategy object; it holds nothing."""

    name: str = NAME

    def initial(self) -> State:
        return State()

    def decide(self, view: NodeView, policy: Policy, state: State, now_s: float) -> Outcome[State]:
        if policy.slo is None or GATE not in policy.gates:
            return Outcome((), State(), until_s=math.inf)
        node, ratio = policy.slo.burst, normalization(view, policy)
        made_from = (view.pods.revision, node, ratio)
        notes: tuple[str, ...] = ()
        changed = made_from != state.made_from
        if changed:
            plan = make_plan(view, node, ratio)
            notes = tuple(note for note in plan.notes if note not in state.plan.notes)
            state = replace(_carried(state, plan, now_s), made_from=made_from)
        if state.plan.quota:
            state, moved = _judge(view, node, state, now_s)
            changed = changed or moved
        if changed:
            state = _built(state)
        return Outcome(state.decisions, state, gauges=state.gauges, notes=notes)


BURST: Final = Burst()


def normalization(view: NodeView, policy: Policy) -> float | None:
    """Ratio by which CPU normalisation scales quotas on this node, None where it is off."""
    return view.node.cpu_normalization_ratio if "CPUNormalization" in policy.gates else None


def step_us(current_us: int, base_us: int, ceiling_us: int, op: Op) -> int:
    """Next quota of one container. current -1: unlimited."""
    match op:
        case Op.UP:
            wanted = current_us * 6 // 5
        case Op.DOWN:
            wanted = current_us * 4 // 5
        case Op.RESET:
            wanted = base_us
        case Op.REMAIN:
            wanted = current_us
    return max(base_us, min(wanted, ceiling_us))


def asked(throttled: float | None, allowed: bool, pool: Room) -> Op:
    """What a container's own state asks for, as the pool permits."""
    op = Op.DOWN if not allowed else Op.UP if throttled else Op.REMAIN
    if pool is Room.OVERLOAD and op is not Op.DOWN:
        return Op.DOWN
    return Op.REMAIN if pool is not Room.IDLE and op is Op.UP else op


def _carried(state: State, plan: Plan, now_s: float) -> State:
    """What is left of the last state for these containers: limits may have changed, containers may be gone."""
    entries = plan.quota
    resized = {uid: at_s for uid, at_s in state.resized_s.items() if now_s - at_s < RESIZE_S}
    for key, old in state.plan.quota.items():
        if key in entries and entries[key].base_us != old.base_us:
            resized[old.pod.uid] = now_s
    quotas = {
        key: quota
        for key, us in state.quotas.items()
        if key in entries
        and entries[key].pod.uid not in resized
        and (quota := step_us(us, entries[key].base_us, entries[key].ceiling_us, Op.REMAIN)) > entries[key].base_us
    }
    tokens = {
        key: kept
        for key, kept in state.tokens.items()
        if key in entries and _limited(entries[key]) and kept.capacity == burst_tokens.capacity_of(entries[key].config)
    }
    known = dict(plan.bases_us)
    first = {cgroup: us for cgroup, us in state.first_base_us.items() if cgroup in known}
    return replace(state, plan=plan, quotas=quotas, tokens=tokens, first_base_us=first, resized_s=resized)


def _limited(entry: Entry) -> bool:
    """Bursts for a limited time only."""
    return entry.config.quota_burst_period_s >= 0


def _judge(view: NodeView, node: CpuBurst, state: State, now_s: float) -> tuple[State, bool]:
    """One round over the quotas; True if one of them changed."""
    usage, plan = view.usage, state.plan
    total = _cpus_mcpu(view) - plan.exclusive_mcpu
    mcpu, at_s = _pool_use(view, plan, now_s)
    pool = state.pool.sampled(mcpu, at_s, now_s)
    state = replace(state, pool=pool)
    calm = now_s - state.shrunk_s < CALM_S
    threshold_share = node.share_pool_threshold_percent / 100
    now_room = room(pool.average_mcpu(), total, node.share_pool_threshold_percent, calm=calm)
    if now_room is Room.OVERLOAD and 0 < (pool.expected_mcpu(now_s) or 0.0) < total * threshold_share:
        now_room = Room.COOLING  # what was just taken back will do
    hot = [entry for cgroup in usage.throttled_containers or () if (entry := plan.by_cgroup.get(cgroup)) is not None]
    looked = {entry.key: entry for entry in (*hot, *(plan.quota[key] for key in state.quotas), *plan.limited)}
    if not looked:
        return state, False
    threshold = total * threshold_share
    expected = pool.expected_mcpu(now_s) or 0.0
    tokens = dict(state.tokens)
    ups: list[tuple[float, str, Entry]] = []
    downs: list[tuple[bool, int, str, Entry]] = []
    for entry in looked.values():
        above = state.quotas.get(entry.key, entry.base_us) - entry.base_us
        allowed = _account(view, entry, tokens, above > 0, now_s)
        throttled = _throttled(view, entry, now_s) if usage.throttled_containers else None
        op = asked(throttled, allowed, now_room)
        if op is Op.UP and now_s - state.resized_s.get(entry.pod.uid, float("-inf")) < RESIZE_S:
            continue
        if op is Op.UP and throttled and entry.ceiling_us - entry.base_us > above:
            ups.append((-throttled, entry.key, entry))
        elif op is Op.DOWN and above > 0:
            downs.append((allowed, -above, entry.key, entry))
    quotas = dict(state.quotas)
    change = 0.0
    missing = expected - RELIEF * threshold
    for allowed, _, key, entry in sorted(downs, key=lambda row: row[:3]):
        if allowed and missing <= 0:
            break  # the overload is met; who is out of tokens came first and goes down in any case
        old = quotas[key]
        quotas[key] = step_us(old, entry.base_us, entry.ceiling_us, Op.DOWN)
        freed = _freed_mcpu(view, entry, old, quotas[key])
        missing -= freed
        change -= freed
        if allowed:
            state = replace(state, shrunk_s=now_s)
    left = COOLING * threshold - expected
    for _, key, entry in sorted(ups, key=lambda row: row[:2]):
        if left < LEAST_GRANT_MCPU:
            break
        old = quotas.get(key, entry.base_us)
        most_us = old + int(left * DEFAULT_PERIOD_US / 1000)
        quotas[key] = min(step_us(old, entry.base_us, entry.ceiling_us, Op.UP), most_us)
        granted = (quotas[key] - old) * 1000 / DEFAULT_PERIOD_US
        left -= granted
        change += granted
    quotas = {key: us for key, us in quotas.items() if us > plan.quota[key].base_us}
    return replace(state, pool=pool.granted(change, now_s), tokens=tokens, quotas=quotas), quotas != state.quotas


def _cpus_mcpu(view: NodeView) -> int:
    topology = view.node.topology
    return len(topology.online) * 1000 if topology is not None else view.node.capacity_mcpu or 0


def _pool_use(view: NodeView, plan: Plan, now_s: float) -> tuple[float | None, float]:
    """(mcpu used in the share pool, when). System usage stays inside on purpose; an LSR pod without a reading too."""
    usage = view.usage
    node, pods, nonbe = usage.node_mcpu, usage.pods_mcpu, usage.nonbe_pods_mcpu
    if node is None or pods is None or nonbe is None:
        return None, now_s
    at_s = min(node.at_s, pods.at_s, nonbe.at_s)
    if now_s - at_s > FRESH_INTERVALS * view.interval_s:
        return None, now_s
    rows = (view.workloads.get(cgroup) for cgroup in plan.exclusive)
    exclusive = sum(row.cpu_mcpu.value for row in rows if row is not None and row.cpu_mcpu is not None)
    return max(node.value - (pods.value - nonbe.value) - exclusive, 0.0), at_s


def _fresh(reading: Reading | None, view: NodeView, now_s: float) -> float | None:
    if reading is None or reading.age_s(now_s) > FRESH_INTERVALS * view.interval_s:
        return None
    return reading.value


def _throttled(view: NodeView, entry: Entry, now_s: float) -> float | None:
    row = view.workloads.get(entry.cgroup)
    return None if row is None else _fresh(row.throttled, view, now_s)


def _account(view: NodeView, entry: Entry, tokens: dict[str, Tokens], above: bool, now_s: float) -> bool:
    """Whether it may burst, and its account kept. Without a usage it counts as using its limit."""
    if entry.config.quota_burst_percent < 100:
        return False
    if not _limited(entry):
        return True
    kept = tokens.get(entry.key)
    if kept is None:
        kept = burst_tokens.begin(entry.key, entry.config, now_s)
    elif above or now_s - kept.at_s >= IDLE_ACCOUNT_S:
        row = view.workloads.get(entry.cgroup)
        used = None if row is None else _fresh(row.cpu_mcpu, view, now_s)
        percent = 100 if used is None else int(used * 100 / entry.limit_mcpu)
        kept = burst_tokens.account(kept, percent, now_s)
    tokens[entry.key] = kept
    return kept.allowed


def _freed_mcpu(view: NodeView, entry: Entry, old_us: int, new_us: int) -> float:
    """How much less it will use: of an allowance that it does not use nothing."""
    row = view.workloads.get(entry.cgroup)
    old, new = old_us * 1000 / DEFAULT_PERIOD_US, new_us * 1000 / DEFAULT_PERIOD_US
    used = old if row is None or row.cpu_mcpu is None else row.cpu_mcpu.value
    return max(min(used, old) - new, 0.0)


def _built(state: State) -> State:
    """Decisions and gauges for the quotas in force."""
    plan, known = state.plan, dict(state.plan.bases_us)
    quotas: dict[str, tuple[int, int]] = {}  # cgroup -> (us, base)
    pods = dict(plan.pod_base_us)
    gauges = list(plan.gauges)
    for key, us in sorted(state.quotas.items()):
        entry = plan.quota[key]
        quotas[entry.cgroup] = (us, entry.base_us)
        gauges.append(("container_scaled_cfs_quota_us", entry.labels, float(us)))
        whole = pods.get(entry.pod.uid)
        if whole is not None and entry.pod.cgroup:
            before = quotas.get(entry.pod.cgroup, (whole, whole))[0]
            quotas[entry.pod.cgroup] = (before + us - entry.base_us, whole)
    first = {**{cgroup: base for cgroup, (_, base) in quotas.items()}, **state.first_base_us}
    for cgroup, base in first.items():
        if cgroup not in quotas and known[cgroup] != base:
            quotas[cgroup] = (known[cgroup], known[cgroup])
    first = {cgroup: base for cgroup, base in first.items() if cgroup in quotas}
    made = tuple(
        Decision(cgroup, Knob.CPU_QUOTA, us, stages(base_us=base, burst_us=us), NAME)
        for cgroup, (us, base) in quotas.items()
    )
    return replace(state, first_base_us=first, decisions=plan.kernel + made, gauges=tuple(gauges))
