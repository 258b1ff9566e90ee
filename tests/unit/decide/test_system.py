"""System settings: what is named, what stays, what is given back."""

from __future__ import annotations

from koordlet.decide.system import SYSTEM_CONFIG, State
from koordlet.model.knob import Knob
from koordlet.model.slo import NodeSlo
from koordlet.model.system import SystemStrategy
from koordlet.model.view import NodeInfo, NodeView, Outcome, Policy

GIB = 1 << 30


def decide(state: State | None = None, capacity: int | None = 24 * GIB, gate: bool = True, **wanted: object) -> (
    Outcome[State]
):  # fmt: skip
    strategy = SystemStrategy(**wanted)  # type: ignore[arg-type]
    rule = Policy(slo=NodeSlo(system=strategy), gates=frozenset({"SystemConfig"} if gate else ()))
    view = NodeView(0.0, node=NodeInfo(capacity_bytes=capacity))
    return SYSTEM_CONFIG.decide(view, rule, state or SYSTEM_CONFIG.initial(), 0.0)


def values(outcome: Outcome[State]) -> dict[tuple[str, Knob], object]:
    return {d.key: d.value for d in outcome.decisions}


def test_every_field_has_its_file() -> None:
    outcome = decide(
        min_free_factor=50,
        watermark_scale=20,
        memcg_reap=1,
        group_identity=1,
        idle_saver_wmark_ns=500,
        pagecache_limit=0,
        sched_features=(("NEXT_BUDDY", True), ("WAKEUP_PREEMPTION", False)),
    )
    assert values(outcome) == {
        ("system", Knob.VM_MIN_FREE_KBYTES): 125_829,
        ("system", Knob.VM_WATERMARK_SCALE): 20,
        ("system", Knob.MEMCG_REAP): 1,
        ("system", Knob.SCHED_GROUP_IDENTITY): 1,
        ("system", Knob.SCHED_IDLE_SAVER): 500,
        ("system", Knob.PAGECACHE_LIMIT): 0,
        ("system/NEXT_BUDDY", Knob.SCHED_FEATURE): 1,
        ("system/WAKEUP_PREEMPTION", Knob.SCHED_FEATURE): 0,
    }


def test_nothing_asked_nothing_named() -> None:
    assert decide().decisions == decide(gate=False, watermark_scale=20).decisions == ()


def test_steady_rounds_hand_back_the_same_tuple() -> None:
    first = decide(watermark_scale=20)
    assert decide(first.state, watermark_scale=20).decisions is first.decisions


def test_out_of_range_changes_nothing_and_a_removed_field_is_given_back() -> None:
    """The recording system-strategy: 125829 and 20 stay through "out of range". The reference keeps them for ever."""
    first = decide(min_free_factor=50, watermark_scale=20)
    bad = decide(first.state, min_free_factor=1, watermark_scale=5)
    assert values(bad) == values(first)
    assert len(bad.notes) == 2
    assert "vm.watermark_scale_factor: 5 is not in 10..400" in bad.notes[1]
    assert decide(bad.state, watermark_scale=20).decisions[0].value == 20
    assert decide(bad.state).decisions == ()


def test_unknown_capacity_leaves_the_reserve_alone() -> None:
    assert decide(capacity=None, min_free_factor=50).decisions == ()
    first = decide(min_free_factor=50)
    assert values(decide(first.state, capacity=None, min_free_factor=50)) == values(first)
