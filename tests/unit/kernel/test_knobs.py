from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.knobs import INT64_MAX, KNOBS, PAGE_BYTES, QUOTA_MAX_US, Hierarchy, Unit, ensure_target, knob_path
from koordlet.kernel.knobtext import KnobValueError, encode, parse, same
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob, KnobValue
from koordlet.model.units import (
    mcpu_to_quota_us,
    mcpu_to_shares,
    shares_to_weight,
    weight_to_shares,
)
from tests.hosts.cases import CASES, case_json, case_text
from tests.hosts.knobs import read_knob
from tests.hosts.tree import HostTree

V1, V2 = CgroupVersion.V1, CgroupVersion.V2
FOUR_CPUS = CpuSet(range(4))


def test_every_knob_has_a_row() -> None:
    assert set(KNOBS) == set(Knob)


def test_hierarchy_rules() -> None:
    assert KNOBS[Knob.CPU_QUOTA].hierarchy is KNOBS[Knob.CPUSET].hierarchy is Hierarchy.CHILD_WITHIN_PARENT
    assert KNOBS[Knob.MEMORY_LIMIT].hierarchy is Hierarchy.CHILD_WITHIN_PARENT
    assert KNOBS[Knob.MEMORY_MIN].hierarchy is KNOBS[Knob.MEMORY_LOW].hierarchy is Hierarchy.PARENT_AT_LEAST_CHILDREN
    assert KNOBS[Knob.CPU_SHARES].hierarchy is KNOBS[Knob.CPU_IDLE].hierarchy is Hierarchy.NONE


PATHS = [
    (Knob.CPU_SHARES, "cpu/p/cpu.shares", "p/cpu.weight"),  # W-1
    (Knob.CPU_QUOTA, "cpu/p/cpu.cfs_quota_us", "p/cpu.max"),
    (Knob.CPU_BURST, "cpu/p/cpu.cfs_burst_us", "p/cpu.max.burst"),
    (Knob.CPU_IDLE, "cpu/p/cpu.idle", "p/cpu.idle"),
    (Knob.CPUSET, "cpuset/p/cpuset.cpus", "p/cpuset.cpus"),
    (Knob.CPUSET_MEMS, "cpuset/p/cpuset.mems", "p/cpuset.mems"),
    (Knob.MEMORY_LIMIT, "memory/p/memory.limit_in_bytes", "p/memory.max"),
    (Knob.MEMORY_LOW, "memory/p/memory.low", "p/memory.low"),
    (Knob.FREEZE, "freezer/p/freezer.state", "p/cgroup.freeze"),
]


@pytest.mark.parametrize(("knob", "v1", "v2"), PATHS)
def test_paths(tmp_path: Path, knob: Knob, v1: str, v2: str) -> None:
    assert knob_path(HostTree(tmp_path / "1", V1).host, "p", knob) == tmp_path / "1/cgroup" / v1
    assert knob_path(HostTree(tmp_path / "2", V2).host, "p", knob) == tmp_path / "2/cgroup" / v2


@pytest.mark.parametrize("target", ["", "/", "//", "..", "a/../b", "/a/..", "./a", "a\0b"])
def test_the_root_and_paths_that_climb_are_refused(target: str) -> None:
    with pytest.raises(ValueError, match="not written"):
        ensure_target(target)


def test_targets_lose_their_outer_slashes() -> None:
    assert ensure_target("/kubepods//besteffort/") == "kubepods/besteffort"


def test_empty_cgroup_parents_are_errors() -> None:
    for request, expected in zip(
        case_json("empty-cgroup-parent", "requests.json"), case_json("empty-cgroup-parent"), strict=True
    ):
        if expected["error"]:
            with pytest.raises(ValueError, match="root cgroup"):
                ensure_target(request["cgroup_parent"])
        else:
            assert ensure_target(request["cgroup_parent"]) == request["cgroup_parent"]


PARSED = [
    (V2, Knob.CPU_QUOTA, "max 100000\n", -1),  # W-7
    (V2, Knob.CPU_QUOTA, "350000 100000\n", 350_000),
    (V1, Knob.CPU_QUOTA, "-1\n", -1),
    (V1, Knob.CPU_SHARES, "1024\n", 1024),
    (V2, Knob.CPU_SHARES, "100\n", 2597),  # W-5
    (V2, Knob.CPU_SHARES, "500\n", 13_084),
    (V2, Knob.CPU_SHARES, "0\n", 2),  # what an idle group shows
    (V2, Knob.CPUSET, "\n", CpuSet()),
    (V1, Knob.CPUSET, "0-1,4\n", CpuSet([0, 1, 4])),
    (V2, Knob.MEMORY_HIGH, "max\n", -1),
    (V2, Knob.MEMORY_MIN, "max\n", INT64_MAX),
    (V2, Knob.MEMORY_LOW, "4096\n", 4096),
    (V1, Knob.FREEZE, "THAWED\n", 0),
    (V1, Knob.FREEZE, "FREEZING\n", 1),
    (V1, Knob.FREEZE, "FROZEN\n", 1),
    (V2, Knob.FREEZE, "1\n", 1),
    (V1, Knob.CPU_BVT, "-1\n", -1),
]


@pytest.mark.parametrize(("version", "knob", "text", "value"), PARSED)
def test_parse(version: CgroupVersion, knob: Knob, text: str, value: KnobValue) -> None:
    assert parse(version, knob, text) == value


@pytest.mark.parametrize("name", list(case_json("memory-limit-unlimited-sentinels")))
def test_unlimited_memory(name: str) -> None:
    text = case_text("memory-limit-unlimited-sentinels", name)
    assert (
        parse(CgroupVersion(name[:2]), Knob.MEMORY_LIMIT, text) == case_json("memory-limit-unlimited-sentinels")[name]
    )


GARBAGE = [
    (V2, Knob.CPU_QUOTA, "100000\n"),  # W-7
    (V2, Knob.CPU_QUOTA, "a b"),
    (V2, Knob.CPU_QUOTA, ""),
    (V1, Knob.CPU_SHARES, "many"),
    (V1, Knob.CPU_SHARES, "1_0"),
    (V1, Knob.CPU_SHARES, "9" * 40),
    (V1, Knob.CPUSET, "0-"),
    (V1, Knob.FREEZE, "COLD"),
    (V1, Knob.MEMORY_LIMIT, "1G"),
]


@pytest.mark.parametrize(("version", "knob", "text"), GARBAGE)
def test_garbage_is_an_error_that_names_the_file_and_same_as_nothing(
    version: CgroupVersion, knob: Knob, text: str
) -> None:
    row = KNOBS[knob]
    with pytest.raises(KernelFileError) as caught:
        parse(version, knob, text)
    assert caught.value.path == (row.v1_file if version is V1 else row.v2_file)
    value: KnobValue = CpuSet([0]) if row.unit is Unit.CPUS else 1
    assert not same(version, knob, value, text)


ENCODED = [
    (V1, Knob.CPU_QUOTA, -1, b"-1"),
    (V2, Knob.CPU_QUOTA, -1, b"max"),
    (V2, Knob.CPU_QUOTA, 150_000, b"150000"),
    (V1, Knob.CPU_SHARES, 1024, b"1024"),
    (V2, Knob.CPU_SHARES, 1024, b"39"),
    (V2, Knob.CPU_SHARES, 262_144, b"10000"),
    (V1, Knob.CPUSET, CpuSet([3, 0, 1]), b"0-1,3"),
    (V1, Knob.MEMORY_LIMIT, -1, b"-1"),
    (V2, Knob.MEMORY_LIMIT, -1, b"max"),
    (V2, Knob.MEMORY_MIN, INT64_MAX, b"max"),
    (V2, Knob.MEMORY_MIN, 0, b"0"),
    (V1, Knob.FREEZE, 1, b"FROZEN"),
    (V1, Knob.FREEZE, 0, b"THAWED"),
    (V2, Knob.FREEZE, 1, b"1"),
    (V1, Knob.CPU_BVT, -1, b"-1"),
    (V2, Knob.CPU_BURST, 0, b"0"),
]


@pytest.mark.parametrize(("version", "knob", "value", "data"), ENCODED)
def test_encode(version: CgroupVersion, knob: Knob, value: KnobValue, data: bytes) -> None:
    assert encode(version, knob, value) == data


REFUSED: list[tuple[Knob, KnobValue]] = [
    (Knob.CPU_SHARES, 1),
    (Knob.CPU_SHARES, 262_145),
    (Knob.CPU_QUOTA, 0),
    (Knob.CPU_QUOTA, 999),
    (Knob.CPU_QUOTA, -2),
    (Knob.CPU_QUOTA, QUOTA_MAX_US + 1),
    (Knob.CPU_IDLE, 2),
    (Knob.CPU_IDLE, -1),
    (Knob.CPU_BVT, 3),
    (Knob.CPU_BVT, -2),
    (Knob.CPU_BURST, -1),
    (Knob.CPUSET, CpuSet()),
    (Knob.CPUSET, 3),
    (Knob.CPU_SHARES, CpuSet([1])),
    (Knob.MEMORY_LIMIT, 0),
    (Knob.MEMORY_LIMIT, 2**63 - 1),  # would read back as unlimited, which is -1
    (Knob.MEMORY_MIN, -1),
    (Knob.FREEZE, 2),
]


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize(("knob", "value"), REFUSED)
def test_encode_refuses_what_the_knob_cannot_hold(version: CgroupVersion, knob: Knob, value: KnobValue) -> None:
    with pytest.raises(KnobValueError) as caught:
        encode(version, knob, value)
    assert str(caught.value).startswith(f"{knob}: {value!r} is not ")


SAME = [
    (V2, Knob.CPU_QUOTA, 200_000, "200000 100000\n", True),
    (V2, Knob.CPU_QUOTA, 200_000, "200000 50000\n", True),
    (V1, Knob.CPU_QUOTA, -1, "-1\n", True),
    (V2, Knob.CPU_SHARES, 998, "39\n", False),  # reading back loses digits: restore writes recorded bytes
    (V2, Knob.CPU_SHARES, 2048, "39\n", False),
    (V2, Knob.CPU_SHARES, 2, "0\n", False),
    (V1, Knob.CPU_SHARES, 1024, "1024\n", True),
    (V1, Knob.MEMORY_LIMIT, 1_000_000_000, "999997440\n", True),  # seen 25
    (V1, Knob.MEMORY_LIMIT, 1_000_000_000, "999993344\n", False),
    (V1, Knob.MEMORY_LIMIT, -1, "9223372036854771712\n", True),
    (V2, Knob.MEMORY_LOW, INT64_MAX, "max\n", True),
    (V2, Knob.MEMORY_LOW, 0, "4096\n", False),
    (V1, Knob.FREEZE, 1, "FREEZING\n", True),
    (V1, Knob.CPUSET, FOUR_CPUS, "0-3\n", True),
    (V1, Knob.CPUSET, FOUR_CPUS, "0-2\n", False),
    (V2, Knob.CPUSET, FOUR_CPUS, "\n", False),
    (V2, Knob.CPUSET_PARTITION, 2, "isolated\n", True),
    (V2, Knob.CPUSET_PARTITION, 2, "isolated invalid (Cpu list in cpuset.cpus not exclusive)\n", False),
    (V2, Knob.CPUSET_PARTITION, 0, "root invalid (Parent is not a partition root)\n", False),
]


@pytest.mark.parametrize(("version", "knob", "value", "text", "expected"), SAME)
def test_same(version: CgroupVersion, knob: Knob, value: KnobValue, text: str, expected: bool) -> None:
    assert PAGE_BYTES == 4096 or knob not in (Knob.MEMORY_LIMIT, Knob.MEMORY_LOW)
    assert same(version, knob, value, text) is expected


@pytest.mark.parametrize("row", range(5))
def test_no_needless_write(row: int) -> None:
    pair = case_json("cpu-max-no-needless-write", "pairs.json")[row]
    knob = {"cpu.max": Knob.CPU_QUOTA, "cpuset.cpus": Knob.CPUSET, "memory.max": Knob.MEMORY_LIMIT}[pair["file"]]
    want: KnobValue = CpuSet.parse(pair["want"]) if knob is Knob.CPUSET else int(pair["want"])
    write = not same(V2, knob, want, pair["current"])
    assert write is case_json("cpu-max-no-needless-write")[row]


@pytest.mark.parametrize("row", range(8))
def test_quota_merge(row: int) -> None:
    """A parent's quota may only be loosened first; what is parsed and encoded here decides that."""
    pair, expected = case_json("quota-merge-larger", "pairs.json")[row], case_json("quota-merge-larger")[row]
    version, want = CgroupVersion(pair["version"]), int(pair["want"])
    current = parse(version, Knob.CPU_QUOTA, pair["current"])
    assert isinstance(current, int)
    looser = current != -1 and (want == -1 or want > current)
    written = encode(version, Knob.CPU_QUOTA, want).decode() if looser else None
    assert written == expected


def test_weight_is_compared_in_the_files_unit() -> None:
    expected = case_json("cpu-weight-two-formulas")
    for shares in case_json("cpu-weight-two-formulas", "shares.json"):
        assert encode(V2, Knob.CPU_SHARES, shares).decode() == str(expected["linear"][str(shares)])
    for shares, weight in expected["clamped"].items():
        assert shares_to_weight(int(shares)) == weight
    text = case_text("cpu-weight-two-formulas", "cpu.weight")
    assert parse(V2, Knob.CPU_SHARES, text) == expected["inverse_linear_39"]
    assert same(V2, Knob.CPU_SHARES, 1024, text) is not expected["rewrite_when_file_39_and_shares_1024"]


def test_shares_weight_round_trips() -> None:  # W-5
    rows = {2: (1, 2), 10: (1, 2), 256: (10, 237), 512: (20, 500), 1024: (39, 998), 2048: (79, 2046)}
    rows |= {4096: (157, 4091), 102_400: (3906, 102_378), 262_144: (10_000, 262_144)}
    for shares, (weight, back) in rows.items():
        assert (shares_to_weight(shares), weight_to_shares(weight)) == (weight, back)


def test_milli_cpu_to_shares_and_quota() -> None:  # W-6
    rows = {0: (2, -1), 1: (2, 1000), 5: (5, 1000), 100: (102, 10_000), 250: (256, 25_000)}
    rows |= {1500: (1536, 150_000), 300_000: (262_144, 30_000_000)}
    for mcpu, (shares, quota) in rows.items():
        assert (mcpu_to_shares(mcpu), mcpu_to_quota_us(mcpu)) == (shares, quota)
    expected = case_json("batch-quota-floor")
    for mcpu in case_json("batch-quota-floor", "milli.json"):
        assert mcpu_to_quota_us(mcpu) == expected["quota"][str(mcpu)]
        assert mcpu_to_shares(mcpu) == expected["shares"][str(mcpu)]


def _values(knob: Knob) -> st.SearchStrategy[KnobValue]:
    row = KNOBS[knob]
    if row.unit is Unit.CPUS:
        return st.builds(CpuSet, st.sets(st.integers(0, 600), min_size=1))
    if row.unit is Unit.FIELDS:
        return st.lists(st.sampled_from("abcdef"), min_size=1, unique=True).map(lambda k: " ".join(f"{c}=1" for c in k))
    numbers = st.integers(row.low, row.high)
    return numbers | st.just(-1) if row.unit in (Unit.QUOTA, Unit.BYTES_LIMIT, Unit.RATE) else numbers


@given(st.sampled_from(CgroupVersion), st.sampled_from(Knob).flatmap(lambda k: st.tuples(st.just(k), _values(k))))
def test_what_was_encoded_is_the_same(version: CgroupVersion, pair: tuple[Knob, KnobValue]) -> None:
    knob, value = pair
    text = encode(version, knob, value).decode()
    shown = f"{text} 100000" if knob is Knob.CPU_QUOTA and version is V2 else text
    assert same(version, knob, value, shown + "\n")


@given(st.sampled_from(CgroupVersion), st.sampled_from(Knob), st.text())
def test_parse_answers_or_raises_its_own_error(version: CgroupVersion, knob: Knob, text: str) -> None:
    with suppress(KernelFileError):
        parse(version, knob, text)


def test_reading(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, V2)
    tree.cgroup("be", {"cpu.max": "50000 20000\n", "cpuset.cpus.effective": "0-3\n"}, drop=("cpu.idle",))
    host = tree.host
    assert read_knob(host, "be", Knob.CPU_QUOTA) == 50_000
    assert read_knob(host, "be", Knob.CPUSET) == CpuSet()
    assert read_knob(host, "be", Knob.CPUSET, effective=True) == FOUR_CPUS
    assert read_knob(host, "be", Knob.CPU_IDLE) is None


def test_reading_v1(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, V1)
    tree.cgroup("be", {"cpuset.cpus": "0-3\n"})
    assert read_knob(tree.host, "be", Knob.CPUSET, effective=True) == FOUR_CPUS
    assert read_knob(tree.host, "be", Knob.MEMORY_MIN) is None


def test_unset_cpusets_of_v2(tmp_path: Path) -> None:
    case = "cpuset-v2-empty-means-effective"
    tree = HostTree(tmp_path, V2)
    for group, expected in case_json(case).items():
        tree.put(f"cgroup/{group}", {path.name: path.read_text() for path in (CASES / case / group).iterdir()})
        found = read_knob(tree.host, group, Knob.CPUSET, effective=True)
        assert found == (None if expected == "unsupported" else CpuSet(expected))
