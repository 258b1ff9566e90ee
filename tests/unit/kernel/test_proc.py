import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.proc import (
    TICKS_PER_S,
    NodeMemory,
    busy_mcpu,
    node_memory,
    parse_meminfo,
    parse_stat,
    read_node_cpu,
    read_node_memory,
)
from tests.hosts.cases import case_json, case_text
from tests.hosts.tree import HostTree


def test_busy_ticks_leave_idle_steal_and_guest_out() -> None:
    case, expected = "proc-stat-idle-backwards-guest", case_json("proc-stat-idle-backwards-guest")
    params = case_json(case, "params.json")
    before, after = (parse_stat(case_text(case, f"stat.{number}")) for number in (1, 2))
    for name, key in (("cpu", "node_cores"), ("cpu0", "cpu0_cores"), ("cpu1", "cpu1_cores")):
        mcpu = busy_mcpu(before[name], after[name], params["interval_seconds"], params["ticks_per_second"])
        assert mcpu == pytest.approx(expected[key] * 1000)


@pytest.mark.parametrize(
    ("before", "after", "elapsed_s", "mcpu"),
    [  # W-17; a counter that falls gives no sample
        (123_256, 123_456, 1.0, 2000.0),
        (500, 499, 1.0, None),
        (500, 600, 0.0, None),
        (500, 500, 1.0, 0.0),
    ],
)
def test_busy_mcpu(before: int, after: int, elapsed_s: float, mcpu: float | None) -> None:
    assert busy_mcpu(before, after, elapsed_s, 100) == mcpu


def test_a_usage_counter_that_was_reset_gives_no_sample() -> None:
    samples = case_json("cpu-usage-counter-reset", "scenario.json")["samples"]
    found = [
        busy_mcpu(one["usage"], two["usage"], two["t"] - one["t"], 1_000_000_000) for one, two in pairwise(samples)
    ]
    first, second = case_json("cpu-usage-counter-reset")["cores"]
    assert found[0] is first
    assert found[1] == pytest.approx(second * 1000)


@pytest.mark.parametrize(
    "text", ["", "cpu", "cpu  1 2 3\n", "cpu a b c d e f g h\n", "intr 1 2 3 4 5 6 7 8\n", "cpux 1 2 3 4 5 6 7 8\n"]
)
def test_malformed_stat_lines_are_passed_over(text: str) -> None:
    assert parse_stat(text) == {}
    assert parse_stat(text + "\ncpu3 1 1 1 9 9 1 1\n") == {"cpu3": 5}


def test_meminfo_is_in_kib() -> None:
    expected = case_json("node-memory-kib-to-bytes")
    memory = node_memory(parse_meminfo(case_text("node-memory-kib-to-bytes", "meminfo")))
    assert memory is not None
    assert memory.used_bytes == expected["usage_bytes"]
    assert memory.used_with_cache_bytes == expected["usage_with_page_cache_bytes"]


def test_without_memavailable_the_node_is_not_full() -> None:
    expected = case_json("meminfo-no-memavailable")
    memory = node_memory(parse_meminfo(case_text("meminfo-no-memavailable", "meminfo")))
    assert memory is not None
    assert (memory.total_bytes, memory.used_bytes) == (expected["mem_total_bytes"], expected["usage_bytes"])
    assert memory.used_bytes * 100 // memory.total_bytes == expected["usage_percent"]


def test_the_nodes_memory_comes_from_meminfo_not_from_the_root_cgroup() -> None:
    expected = case_json("root-cgroup-usage-above-capacity")
    memory = node_memory(parse_meminfo(case_text("root-cgroup-usage-above-capacity", "meminfo")))
    assert memory is not None
    assert memory.used_bytes == expected["usage_bytes"]
    assert memory.used_bytes * 100 // memory.total_bytes == expected["usage_percent"]


def test_memory_of_a_numa_node() -> None:  # W-14
    rows = {"MemTotal": 1000, "MemFree": 300, "Active(file)": 200, "Inactive(file)": 100, "SReclaimable": 50}
    text = "".join(f"Node 1 {key}:   {value} kB\n" for key, value in rows.items())
    assert node_memory(parse_meminfo(text)) == NodeMemory(1_024_000, 358_400, 716_800)


@pytest.mark.parametrize("text", ["", "MemTotal: 10 kB\n", "MemTotal:\nMemFree:\n", "MemTotal: 10 kB\nMemFree: 5 kB\n"])
def test_too_little_meminfo_is_no_reading(text: str) -> None:
    assert node_memory(parse_meminfo(text)) is None


def test_malformed_meminfo_lines_are_passed_over() -> None:
    text = "MemTotal:\nMemFree 3 kB\nMemAvailable: -1 kB\nCached: x kB\n: 3\nHugePages_Total:    7\nBuffers: 2 kB\n"
    assert parse_meminfo(text) == {"HugePages_Total": 7, "Buffers": 2048}


@given(st.text())
def test_no_text_is_too_strange(text: str) -> None:
    parse_stat(text)
    node_memory(parse_meminfo(text))


def test_reading_a_copied_proc(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, CgroupVersion.V1, {"proc": {"stat": "cpu 1 2 3 4 5 6 7 8\n"}})
    assert read_node_cpu(tree.host) == {"cpu": 19}
    with pytest.raises(FileNotFoundError):
        read_node_memory(tree.host)


def test_reading_this_machine() -> None:
    host = Host.preset("host")
    ticks = read_node_cpu(host)
    assert len(ticks) == 1 + (os.cpu_count() or 0)
    assert sum(busy for name, busy in ticks.items() if name != "cpu") == pytest.approx(ticks["cpu"], abs=len(ticks) * 5)
    memory = read_node_memory(host)
    assert memory is not None
    assert 0 < memory.used_bytes < memory.total_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert os.sysconf("SC_CLK_TCK") == TICKS_PER_S
