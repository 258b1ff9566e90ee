import pytest

from koordlet.act.order import Change, Step, plan
from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.knobtext import encode, parse
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob, KnobValue
from tests.hosts.cases import case_json

QUOTA, BURST, IDLE, SHARES, MIN = Knob.CPU_QUOTA, Knob.CPU_BURST, Knob.CPU_IDLE, Knob.CPU_SHARES, Knob.MEMORY_MIN
LIMIT = Knob.MEMORY_LIMIT

ROWS: list[tuple[str, dict[tuple[str, Knob], tuple[int, int]], list[tuple[str, Knob, int]]]] = [
    (
        "qos 16.7/62: protection grows parent first",
        {("p/c", MIN): (5, 20), ("p", MIN): (10, 30)},
        [("p", MIN, 30), ("p/c", MIN, 20)],
    ),
    (
        "qos 16.7/63: protection shrinks child first",
        {("p", MIN): (30, 10), ("p/c", MIN): (20, 5)},
        [("p/c", MIN, 5), ("p", MIN, 10)],
    ),
    (
        "lsr-cpuset-quota-unset: pod before container when unlimited",
        {("pod/c", QUOTA): (400_000, -1), ("pod", QUOTA): (400_000, -1)},
        [("pod", QUOTA, -1), ("pod/c", QUOTA, -1)],
    ),
    (
        "a parent is limited only after its child is unlimited",
        {("p", QUOTA): (-1, 50_000), ("p/c", QUOTA): (60_000, -1)},
        [("p/c", QUOTA, -1), ("p", QUOTA, 50_000)],
    ),
    (
        "leaving unlimited is shrinking: child first",
        {("p", LIMIT): (-1, 1 << 30), ("p/c", LIMIT): (-1, 1 << 29)},
        [("p/c", LIMIT, 1 << 29), ("p", LIMIT, 1 << 30)],
    ),
    (
        "burst shrinks before its quota",
        {("g", QUOTA): (100_000, 20_000), ("g", BURST): (50_000, 20_000)},
        [("g", BURST, 20_000), ("g", QUOTA, 20_000)],
    ),
    (
        "burst grows after its quota",
        {("g", BURST): (20_000, 50_000), ("g", QUOTA): (20_000, 100_000)},
        [("g", QUOTA, 100_000), ("g", BURST, 50_000)],
    ),
    (
        "idle is cleared before the weight is written",
        {("g", SHARES): (3, 512), ("g", IDLE): (1, 0)},
        [("g", IDLE, 0), ("g", SHARES, 512)],
    ),
    (
        "idle is set after everything else",
        {("g", IDLE): (0, 1), ("g", QUOTA): (-1, 5000), ("g", SHARES): (1024, 512)},
        [("g", QUOTA, 5000), ("g", SHARES, 512), ("g", IDLE, 1)],
    ),
    (
        "freeze first",
        {("g", QUOTA): (-1, 5000), ("g", Knob.FREEZE): (0, 1)},
        [("g", Knob.FREEZE, 1), ("g", QUOTA, 5000)],
    ),
    (
        "thaw last",
        {("g", Knob.FREEZE): (1, 0), ("g", IDLE): (0, 1), ("g", QUOTA): (-1, 5000)},
        [("g", QUOTA, 5000), ("g", IDLE, 1), ("g", Knob.FREEZE, 0)],
    ),
]


@pytest.mark.parametrize(("changes", "steps"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_order(changes: dict[tuple[str, Knob], tuple[int, int]], steps: list[tuple[str, Knob, int]]) -> None:
    found = plan({key: Change(old, new) for key, (old, new) in changes.items()})
    assert found == [Step(*step) for step in steps]


CPUSET_ROWS = [
    ("0-7", "4-11", [("0-11", False), ("4-11", True)]),  # sideways
    ("0-3", "0-7", [("0-7", True)]),  # growing: no stopover
    ("0-7", "2-3", [("2-3", True)]),  # shrinking: no stopover
    ("", "0-3", [("0-3", True)]),
]


@pytest.mark.parametrize(("old", "new", "writes"), CPUSET_ROWS)
def test_union_only_where_needed(old: str, new: str, writes: list[tuple[str, bool]]) -> None:
    found = plan({("g", Knob.CPUSET): Change(CpuSet.parse(old), CpuSet.parse(new))})
    assert [(str(step.value), step.final) for step in found] == writes


def test_sideways_case() -> None:
    tree, expected = (case_json("be-suppress-none-policy-write-order", name) for name in ("tree.json", "expected.json"))
    old, new = CpuSet.parse(tree["old"]), CpuSet.parse(tree["target"])
    steps = plan({(target, Knob.CPUSET): Change(old, new) for target in tree["dirs"]})
    first, second = steps[:6], steps[6:]
    assert {str(step.value) for step in first} == {expected["pass1"]["value"]}
    assert {str(step.value) for step in second} == {expected["pass2"]["value"]}
    depths = [step.target.count("/") for step in steps]
    assert depths[:6] == sorted(depths[:6])
    assert depths[6:] == sorted(depths[6:], reverse=True)


def test_quota_merge_larger_case() -> None:
    """The top-down pass only loosens: as a stopover of one quota on its way."""
    rows = case_json("quota-merge-larger", "pairs.json")
    for row, expected in zip(rows, case_json("quota-merge-larger"), strict=True):
        version = CgroupVersion(row["version"])
        current: KnobValue = parse(version, QUOTA, row["current"])
        wanted = int(row["want"])
        steps = plan({("p", QUOTA): Change(current, wanted), ("p/c", QUOTA): Change(current, wanted)})
        downwards = [step for step in steps if step.target == "p"][:1] if steps and steps[0].target == "p" else []
        assert [encode(version, QUOTA, step.value).decode() for step in downwards] == ([expected] if expected else [])


def test_a_mixed_tree_in_any_given_order() -> None:
    changes = {("a/b", QUOTA): Change(10_000, 20_000), ("a", QUOTA): Change(10_000, 30_000)}
    assert plan(changes) == plan(dict(reversed(changes.items())))
