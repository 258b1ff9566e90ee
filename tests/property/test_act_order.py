"""However a tree is changed, no single write of the plan breaks what cgroup v1 checks, and all values arrive."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from koordlet.act.order import Change, Step, plan
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob, KnobValue

Key = tuple[str, Knob]
QUOTA, BURST, CPUSET = Knob.CPU_QUOTA, Knob.CPU_BURST, Knob.CPUSET
ONLINE = 6


@dataclass
class V1:
    """The rules of linux/kernel/sched/core.c (tg_set_cfs_bandwidth) and cgroup/cpuset-v1.c, on a dictionary."""

    parents: dict[str, str]
    values: dict[Key, KnobValue] = field(default_factory=dict)

    def write(self, step: Step) -> None:
        self.values[step.target, step.knob] = step.value
        self.check()

    def check(self) -> None:
        for target in self.parents:
            quota, burst = self.number(target, QUOTA), self.number(target, BURST)
            assert quota < 0 or burst <= quota, f"{target}: burst {burst} above quota {quota}"
            limit = self.limit_above(target)
            assert quota < 0 or limit < 0 or quota <= limit, f"{target}: quota {quota} above {limit}"
            parent = self.parents[target]
            mine, above = self.values[target, CPUSET], self.values.get((parent, CPUSET), CpuSet(range(ONLINE)))
            assert isinstance(mine, CpuSet)
            assert isinstance(above, CpuSet)
            assert mine <= above, f"{target}: CPUs {mine} outside {above}"

    def number(self, target: str, knob: Knob) -> int:
        value = self.values[target, knob]
        assert isinstance(value, int)
        return value

    def limit_above(self, target: str) -> int:
        while (target := self.parents[target]) in self.parents:
            if (quota := self.number(target, QUOTA)) >= 0:
                return quota
        return -1


@st.composite
def parents_of(draw: st.DrawFn) -> dict[str, str]:
    """target -> parent; parents come first."""
    found: dict[str, str] = {"t": ""}
    for n in range(draw(st.integers(0, 7))):
        parent = draw(st.sampled_from(sorted(found)))
        if parent.count("/") < 3:
            found[f"{parent}/{n}"] = parent
    return found


@st.composite
def legal_values(draw: st.DrawFn, parents: dict[str, str]) -> dict[Key, KnobValue]:
    values: dict[Key, KnobValue] = {}
    tree = V1(parents, values)
    for target, parent in parents.items():
        limit = tree.limit_above(target)
        quota = draw(st.one_of(st.just(-1), st.integers(1000, limit if limit >= 0 else 9000)))
        values[target, QUOTA] = quota
        values[target, BURST] = draw(st.integers(0, quota if quota >= 0 else 9000))
        above = values.get((parent, CPUSET), CpuSet(range(ONLINE)))
        assert isinstance(above, CpuSet)
        values[target, CPUSET] = CpuSet(draw(st.sets(st.sampled_from(sorted(above))))) if above else CpuSet()
    tree.check()
    return values


@st.composite
def moves(draw: st.DrawFn) -> tuple[dict[str, str], dict[Key, KnobValue], dict[Key, KnobValue]]:
    parents = draw(parents_of())
    return parents, draw(legal_values(parents)), draw(legal_values(parents))


@given(moves())
def test_every_state_on_the_way_is_legal(
    move: tuple[dict[str, str], dict[Key, KnobValue], dict[Key, KnobValue]],
) -> None:
    parents, old, new = move
    tree = V1(parents, dict(old))
    changes = {key: Change(old[key], new[key]) for key in old if old[key] != new[key]}
    steps = plan(changes)
    for step in steps:
        tree.write(step)
    assert tree.values == new
    assert len(steps) <= 2 * len(changes)
    assert sum(step.final for step in steps) == len(changes)
    assert plan(dict(reversed(changes.items()))) == steps
