import pytest

from koordlet.act.merge import merge
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import RESTORE, Decision, Knob, KnobValue, Restore
from koordlet.model.why import stages
from tests.hosts.cases import case_json


def want(owner: str, value: KnobValue | Restore, knob: Knob = Knob.CPU_QUOTA, target: str = "be") -> Decision:
    return Decision(target, knob, value, stages(n=1), owner)


WINNERS = [
    (("suppress", "identity"), "suppress"),
    (("identity", "podrules"), "podrules"),
    (("identity", "suppress", "podrules", "undo"), "undo"),
    (("somebody", "identity"), "identity"),
    (("zoe", "adam"), "adam"),
]


@pytest.mark.parametrize(("owners", "winner"), WINNERS)
def test_precedence(owners: tuple[str, ...], winner: str) -> None:
    merged = merge({owner: (want(owner, 1000 + n),) for n, owner in enumerate(owners)})
    assert merged.decisions["be", Knob.CPU_QUOTA].owner == winner
    assert {lost.decision.owner for lost in merged.shadowed} == set(owners) - {winner}
    assert {lost.winner for lost in merged.shadowed} == {winner}


def test_different_keys_do_not_meet() -> None:
    merged = merge({"suppress": (want("suppress", 1, target="a"),), "identity": (want("identity", 2, target="b"),)})
    assert len(merged.decisions) == 2
    assert merged.shadowed == ()


def test_the_same_owner_twice_keeps_the_first_and_reports_the_second() -> None:
    merged = merge({"suppress": (want("suppress", 5000), want("suppress", 6000), want("suppress", 5000))})
    assert merged.decisions["be", Knob.CPU_QUOTA].value == 5000
    assert [(lost.decision.value, lost.winner) for lost in merged.shadowed] == [(6000, "suppress")]


def test_a_wish_for_the_original_takes_part() -> None:
    merged = merge({"undo": (want("undo", RESTORE),), "suppress": (want("suppress", 5000),)})
    assert merged.decisions["be", Knob.CPU_QUOTA].value is RESTORE


def test_an_empty_cpuset_is_no_opinion() -> None:
    rows = case_json("empty-cpuset-not-written", "results.json")
    expected = case_json("empty-cpuset-not-written")["reconcile"]
    for row, want_row in zip(rows, expected, strict=True):
        wishes = () if row["cpuset"] is None else (want("podrules", CpuSet.parse(row["cpuset"]), Knob.CPUSET),)
        merged = merge({"podrules": wishes})
        found = [str(decision.value) for decision in merged.decisions.values()]
        assert found == ([want_row["write"]] if want_row["write"] else [])


def test_no_weight_while_idle_is_wanted() -> None:
    weight, idle = want("podrules", 512, Knob.CPU_SHARES), want("identity", 1, Knob.CPU_IDLE)
    merged = merge({"podrules": (weight,), "identity": (idle,)})
    assert list(merged.decisions) == [("be", Knob.CPU_IDLE)]
    assert [lost.decision for lost in merged.shadowed] == [weight]
    idle_off = want("identity", 0, Knob.CPU_IDLE)
    assert len(merge({"podrules": (weight,), "identity": (idle_off,)}).decisions) == 2


def test_burst_raises_the_pod_rules_quota_and_comes_back_to_it() -> None:
    """Both name the quota of a normalised container; burst only while it is above the base."""
    base, above = want("podrules", 66_667), want("burst", 80_000)
    merged = merge({"podrules": (base,), "burst": (above,)})
    assert merged.decisions == {base.key: above}
    assert [lost.decision for lost in merged.shadowed] == [base]
    assert merge({"podrules": (base,), "burst": ()}).decisions == {base.key: base}
