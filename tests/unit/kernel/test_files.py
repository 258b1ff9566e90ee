from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.files import (
    CpuStat,
    IoRow,
    MemoryStat,
    Throttle,
    parse_counter,
    parse_cpu_list,
    parse_cpu_stat,
    parse_io_stat,
    parse_memory_stat,
    parse_numa_stat,
    throttled_ratio,
)
from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.knobs import PAGE_BYTES
from koordlet.model.cpuset import CpuSet
from tests.hosts.cases import case_json, case_text

V1, V2 = CgroupVersion.V1, CgroupVersion.V2


def test_usage_survives_a_cpu_controller_that_is_off() -> None:
    expected = case_json("cpu-stat-v2-controller-off")
    stat = parse_cpu_stat(V2, case_text("cpu-stat-v2-controller-off", "cpu.stat"))
    assert stat == CpuStat(expected["usage_ns"], expected["user_ns"], expected["system_ns"], None)


def test_usage_in_nanoseconds_without_throttling() -> None:  # W-8
    stat = parse_cpu_stat(V2, "usage_usec 1500000\nuser_usec 1\nsystem_usec 1")
    assert (stat.usage_ns, stat.throttle) == (1_500_000_000, None)


@pytest.mark.parametrize("version", [V1, V2])
def test_throttling_has_one_unit(version: CgroupVersion) -> None:
    case, expected = "cpu-stat-throttle-units", case_json("cpu-stat-throttle-units")[version]
    first, second = (parse_cpu_stat(version, case_text(case, f"{version}/sample{number}")) for number in (1, 2))
    assert first.throttle is not None
    assert second.throttle is not None
    assert second.throttle.throttled_ns - first.throttle.throttled_ns == expected["delta_throttled_ns_1_2"]
    assert throttled_ratio(first.throttle, second.throttle) == expected["ratio_1_2"]
    if version is V1:
        third = parse_cpu_stat(V1, case_text(case, "v1/sample3")).throttle
        assert third is not None
        assert throttled_ratio(second.throttle, third) == expected["ratio_2_3"]
    else:
        assert second.usage_ns is not None
        assert first.usage_ns is not None
        assert second.usage_ns - first.usage_ns == expected["delta_usage_ns_1_2"]


@pytest.mark.parametrize(("after", "ratio"), [((110, 15), 0.5), ((100, 10), 0.0), ((3, 1), 0.0)])  # W-11
def test_throttled_ratio(after: tuple[int, int], ratio: float) -> None:
    assert throttled_ratio(Throttle(100, 10, 0), Throttle(*after, 0)) == ratio


def test_cpu_stat_without_usage_is_garbage_on_v2_only() -> None:
    with pytest.raises(KernelFileError, match="usage_usec"):
        parse_cpu_stat(V2, "")
    assert parse_cpu_stat(V1, "") == CpuStat()


MEMORY_V2 = (
    "anon 900\nfile 500\ninactive_anon 700\nactive_anon 200\ninactive_file 300\nactive_file 150\nunevictable 64\n"
)


def test_memory_without_page_cache() -> None:  # W-9
    stat = parse_memory_stat(V2, MEMORY_V2)
    assert stat == MemoryStat(900, 500, 700, 200, 300, 150, 64)
    assert (stat.usage_bytes, stat.usage_with_page_cache_bytes) == (964, 1414)
    with pytest.raises(KernelFileError, match="unevictable"):
        parse_memory_stat(V2, MEMORY_V2.replace("unevictable 64\n", ""))


@pytest.mark.parametrize(("case", "version"), [("memory-stat-v2-page-cache", V2), ("memory-stat-v1-hierarchical", V1)])
def test_memory_stat_cases(case: str, version: CgroupVersion) -> None:
    expected = case_json(case)
    stat = parse_memory_stat(version, case_text(case, "memory.stat"))
    assert stat.usage_bytes == expected["usage_without_page_cache"]
    assert stat.usage_with_page_cache_bytes == expected["usage_with_page_cache"]
    assert (stat.rss_bytes, stat.cache_bytes) == (expected["rss"], expected["cache"])


def test_keyed_files_are_read_leniently_but_numbers_are_numbers() -> None:
    assert parse_memory_stat(V2, "lonely\n\nanon 1\n" + MEMORY_V2).rss_bytes == 900  # the later one wins
    with pytest.raises(KernelFileError, match="anon is no number"):
        parse_memory_stat(V2, "anon x\n")


NUMA_V2 = "anon N0=193236992 N1=0\nfile N0=1367764992 N1=4095\nkernel_stack N0=1 N1=1\n"


@pytest.mark.parametrize(
    ("version", "text", "nodes"),
    [
        (V2, NUMA_V2, {0: 381_104 * 4096, 1: 4095}),  # W-10, in bytes
        (V2, "anon N0=1 N8=2\nfile N0=1 N8=0\n", {0: 2, 8: 2}),
        (V1, "total=30 N0=10 N1=20\nfile=30 N0=10 N1=20\n", {0: 10 * PAGE_BYTES, 1: 20 * PAGE_BYTES}),
        (V1, "total=0 N0=0\nhierarchical_total=30 N0=30\n", {0: 30 * PAGE_BYTES}),
    ],
)
def test_numa_stat(version: CgroupVersion, text: str, nodes: dict[int, int]) -> None:
    assert parse_numa_stat(version, text) == nodes


@pytest.mark.parametrize(("version", "text"), [(V1, "anon N0=1\n"), (V2, "total=1 N0=1\n"), (V2, "")])
def test_numa_stat_of_the_other_kind_is_garbage(version: CgroupVersion, text: str) -> None:
    with pytest.raises(KernelFileError, match="numa_stat"):
        parse_numa_stat(version, text)


def test_partial_io_rows_give_no_sample() -> None:
    expected = case_json("io-stat-partial-row")
    rows = parse_io_stat(case_text("io-stat-partial-row", "io.stat"))
    absent = expected.pop("absent")
    wanted = {dev: IoRow(row["rbytes"], row["wbytes"], row["rios"], row["wios"]) for dev, row in expected.items()}
    assert rows == wanted
    assert not rows.keys() & set(absent)


def test_a_row_cut_inside_a_number_gives_no_sample() -> None:
    whole = "8:0 rbytes=10 wbytes=20 rios=1 wios=2"
    assert parse_io_stat(whole) == {}
    assert parse_io_stat(whole + "\n") == {"8:0": IoRow(10, 20, 1, 2)}


def test_counters_and_lists() -> None:
    assert parse_counter("12345\n", "cpuacct.usage") == 12_345
    with pytest.raises(KernelFileError, match=r"cpuacct\.usage"):
        parse_counter("", "cpuacct.usage")
    assert parse_cpu_list("0-1,7\n") == CpuSet([0, 1, 7])
    assert parse_cpu_list("\n") == CpuSet()
    with pytest.raises(KernelFileError, match="a-b"):
        parse_cpu_list("a-b\n")


@given(st.sampled_from(CgroupVersion), st.text(alphabet="0123456789 N=:abcrosuw_\n.-", max_size=200))
def test_parsers_answer_or_raise_their_own_error(version: CgroupVersion, text: str) -> None:
    for parser in (parse_cpu_stat, parse_memory_stat, parse_numa_stat):
        with suppress(KernelFileError):
            parser(version, text)
    parse_io_stat(text)
