import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.model.cpuset import MAX_CPU, CpuSet

SETS = st.sets(st.integers(0, 600), max_size=60).map(CpuSet)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", []), ("3-1", []), ("0-2,5,7-8", [0, 1, 2, 5, 7, 8]), ("5,0", [0, 5]), ("0,0-1", [0, 1]), ("4096", [4096])],
)
def test_parsed(text: str, cpus: list[int]) -> None:  # V-04
    assert list(CpuSet.parse(text)) == cpus


@pytest.mark.parametrize("text", ["1 ,2", " 1", "1\n", ",3", "3,", "-1", "1--2", "0-8:2", "a", "0-4097", "٣", "1_0"])
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match="CPU list"):
        CpuSet.parse(text)


@pytest.mark.parametrize(("cpus", "text"), [([0, 1, 2, 5, 7, 8], "0-2,5,7-8"), ([], ""), ([3, 2], "2-3"), ([9], "9")])
def test_text(cpus: list[int], text: str) -> None:  # V-04
    assert str(CpuSet(cpus)) == text


def test_ids_are_bounded() -> None:
    with pytest.raises(ValueError, match="outside"):
        CpuSet([MAX_CPU + 1])
    with pytest.raises(ValueError, match="outside"):
        CpuSet([-1])


@given(SETS)
def test_text_reads_back(cpus: CpuSet) -> None:
    assert CpuSet.parse(str(cpus)) == cpus


@given(SETS, SETS)
def test_algebra_is_that_of_sets(left: CpuSet, right: CpuSet) -> None:
    a, b = set(left), set(right)
    assert set(left | right) == a | b
    assert set(left & right) == a & b
    assert set(left - right) == a - b
    assert (left <= right, left >= right, left == right) == (a <= b, a >= b, a == b)
    assert (len(left), bool(left), hash(left) == hash(CpuSet(a))) == (len(a), bool(a), True)
    assert all((cpu in left) == (cpu in a) for cpu in range(601))


@given(SETS)
def test_iteration_ascends(cpus: CpuSet) -> None:
    assert list(cpus) == sorted(cpus)
