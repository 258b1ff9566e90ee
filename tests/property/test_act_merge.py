"""The winner of a knob depends on who asks, not on the order in which owners are listed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koordlet.act.merge import PRECEDENCE, merge
from koordlet.model.knob import Decision, Knob

OWNERS = [*PRECEDENCE, "other", "another"]
WISHES = st.builds(
    lambda target, knob, value: (target, knob, value),
    st.sampled_from("abc"),
    st.sampled_from([Knob.CPU_QUOTA, Knob.CPU_IDLE, Knob.CPU_SHARES]),
    st.integers(0, 2),
)


@given(st.dictionaries(st.sampled_from(OWNERS), st.lists(WISHES, max_size=5)), st.randoms())
def test_merge(rows: dict[str, list[tuple[str, Knob, int]]], random: object) -> None:
    by_owner = {owner: [Decision(*row, (), owner) for row in wishes] for owner, wishes in rows.items()}
    names = list(by_owner)
    random.shuffle(names)  # type: ignore[attr-defined]
    merged = merge(by_owner)
    assert merge({name: by_owner[name] for name in names}) == merged
    wished = {decision.key for wishes in by_owner.values() for decision in wishes}
    lost = {(lost.decision.target, lost.decision.knob) for lost in merged.shadowed}
    assert merged.decisions.keys() | lost == wished
    for target, knob in merged.decisions:
        idle = merged.decisions.get((target, Knob.CPU_IDLE))
        assert not (knob is Knob.CPU_SHARES and idle is not None and idle.value == 1)
