"""The table on trees of ordinary files: rates, sums, what is read when, what happens to files that go bad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordlet._native import ffi, lib
from koordlet.kernel.host import CgroupVersion
from tests.native import twin
from tests.native.tables import BOTH, MIB, SECOND, SUMS, NewTable

CASES = Path(__file__).parents[1] / "cases"


@BOTH
def test_cpu_rate_of_a_pod(new_table: NewTable, version: CgroupVersion) -> None:
    table = new_table(version)
    pod = table.make("pod")
    table.tree.usage("pod", 4_000_000_000)
    table.step()
    assert table.mcpu(pod) is None
    table.tree.usage("pod", 5_500_000_000)
    table.step(1.0005)
    assert table.mcpu(pod) == pytest.approx(1499.2503748)


def test_a_counter_that_went_back_gives_no_sample(new_table: NewTable) -> None:
    case = CASES / "cpu-usage-counter-reset"
    samples = json.loads((case / "scenario.json").read_text())["samples"]
    table = new_table(CgroupVersion.V1)
    # Read at 10 s steps: gaps above 20 s are first samples here, and the figures scale.
    pod = table.make("pod")
    cores = []
    for sample in samples:
        table.tree.usage("pod", sample["usage"])
        table.step(10)
        cores.append(table.mcpu(pod))
    assert cores[:2] == [None, None]
    assert cores[2] == pytest.approx(0.03 * 1000 * 3)


def test_gaps(new_table: NewTable) -> None:
    """W-43: one averaged sample over 15 s, none over 21 s, then as usual."""
    table = new_table(CgroupVersion.V1)
    pod = table.make("pod")
    found = []
    for seconds, usage_s in ((0, 1), (15, 16), (21, 30), (1, 31)):
        table.tree.usage("pod", usage_s * SECOND)
        table.step(seconds)
        found.append(table.mcpu(pod))
    assert found == [None, pytest.approx(1000), None, pytest.approx(1000)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**62), st.sampled_from([0, 1, 10**9, 20 * 10**9, 21 * 10**9])), max_size=12))
def test_rates_say_what_their_twin_says(new_table: NewTable, readings: list[tuple[int, int]]) -> None:
    table, rate = new_table(CgroupVersion.V1), twin.Rate()
    pod = table.make("pod")
    for usage_ns, step_ns in readings:
        table.tree.usage("pod", usage_ns)
        before_ns = table.now_ns
        table.step(step_ns / SECOND)
        expected = rate.read(usage_ns, table.now_ns)
        if table.now_ns > before_ns:
            assert table.mcpu(pod) == (expected and pytest.approx(expected))


@BOTH
def test_sums_by_class(new_table: NewTable, version: CgroupVersion) -> None:
    table = new_table(version)
    root = table.make("besteffort", lib.KL_ROOT)
    online, batch = table.make("online"), table.make("besteffort/batch", be=True)
    inside = table.make("online/c", lib.KL_CONTAINER, pod=online)
    host, be_host = table.make("redis", lib.KL_HOST), table.make("yarn", lib.KL_HOST, be=True)
    table.step()
    usage = {"besteffort": 300, "online": 500, "besteffort/batch": 250, "online/c": 400, "redis": 70, "yarn": 11}
    for cgroup, mcpu in usage.items():
        table.tree.usage(cgroup, mcpu * 10**6)
        table.tree.memory(cgroup, mcpu * MIB, file=7 * MIB)
    totals = table.step()
    cpu = [totals.cpu[group].value for group in SUMS]
    assert [table.mcpu(row) for row in (root, batch, inside, host, be_host)] == pytest.approx([300, 250, 400, 70, 11])
    table.step()
    totals = table.step()
    assert cpu == pytest.approx([750, 500, 81, 70, 300])
    assert [totals.memory[g].value / MIB for g in SUMS] == pytest.approx([750, 500, 81, 70, 300])
    assert [totals.cpu[g].rows for g in SUMS] == [2, 1, 2, 1, 1]

    lib.kl_table_tag(table.it, batch, 0)
    assert table.step().cpu[lib.KL_SUM_NONBE_PODS].rows == 2


def test_a_new_pod_is_missing_from_the_sum_of_its_first_pass(new_table: NewTable) -> None:
    table = new_table(CgroupVersion.V1)
    table.make("a")
    table.step()
    table.make("b")
    pods = table.step().cpu[lib.KL_SUM_PODS]
    assert (pods.rows, pods.missing, pods.oldest_ns) == (1, 1, table.now_ns)


def test_containers_of_a_pod_that_stood_still_are_not_read(new_table: NewTable) -> None:
    table = new_table(CgroupVersion.V1)
    pod = table.make("pod")
    container = table.make("pod/c", lib.KL_CONTAINER, pod=pod)
    table.tree.usage("pod", SECOND)
    table.tree.usage("pod/c", SECOND)
    assert table.step().skipped == 0
    totals = table.step()
    assert (totals.skipped, totals.counters) == (1, 1)
    assert table.mcpu(container) == 0.0
    table.tree.usage("pod", 2 * SECOND)
    table.tree.usage("pod/c", 2 * SECOND)
    assert table.step().skipped == 0
    assert table.mcpu(container) == pytest.approx(1000)


@BOTH
def test_throttling_only_with_a_quota(new_table: NewTable, version: CgroupVersion) -> None:
    """W-11: 5 of 10 periods; no new period is 0; without a quota there is no value."""
    table = new_table(version)
    row = table.make("pod")

    def periods(count: int, throttled: int) -> float | None:
        table.tree.usage("pod", 0, count, throttled)
        if version is CgroupVersion.V1:
            table.tree.throttled("pod", count, throttled)
        table.step()
        found = table.read(row)
        return found.throttled if found.throttled_ns == table.now_ns else None

    assert periods(90, 9) is None
    table.tree.quota("pod", 50_000)
    for _ in range(6):  # turns until a new quota is noticed
        periods(100, 10)
    assert [periods(110, 15), periods(110, 15), periods(3, 1)] == [0.5, 0.0, 0.0]
    table.tree.quota("pod", -1)
    assert periods(200, 100) is None


@BOTH
def test_throttling_of_every_limited_container_in_every_pass_on_request(
    new_table: NewTable, version: CgroupVersion
) -> None:
    """Without the request a container's turn comes every tenth pass; a pod's throttling stays in turn."""
    table = new_table(version)
    pod = table.make("pod")
    containers = [table.make(f"pod/c{i}", lib.KL_CONTAINER, pod=pod) for i in range(20)]
    for i in range(20):
        table.tree.quota(f"pod/c{i}", 50_000 if i < 12 else -1)
    for _ in range(60):
        table.step()
    flags = lib.KL_PASS_NOMINAL_TIME | lib.KL_PASS_THROTTLING
    for turn in range(1, 15):
        for i in range(20):
            periods, throttled = 10 * turn, 5 * turn if i == 3 else 0
            table.tree.usage("pod", turn * SECOND)
            table.tree.usage(f"pod/c{i}", turn * SECOND, periods, throttled)
            if version is CgroupVersion.V1:
                table.tree.throttled(f"pod/c{i}", periods, throttled)
        table.now_ns += SECOND
        assert lib.kl_table_pass(table.it, ffi.NULL, table.now_ns, flags, table.totals) == 0
        if turn == 1:
            continue  # on v2 the first counters of all
        rows = [table.read(row) for row in containers]
        assert [row.throttled_ns == table.now_ns for row in rows] == [True] * 12 + [False] * 8
        assert rows[3].throttled == 0.5
        assert table.totals.throttled == 1
        numbers = ffi.new("int[]", 4)
        assert lib.kl_table_throttled(table.it, table.now_ns, numbers, 4) == 1
        assert numbers[0] == containers[3]
        assert lib.kl_table_throttled(table.it, table.now_ns + 1, numbers, 4) == 0
        assert lib.kl_table_throttled(table.it, 0, numbers, 0) == 0


@BOTH
def test_a_pod_that_is_its_own_container_is_read_with_them_and_summed_as_a_pod(
    new_table: NewTable, version: CgroupVersion
) -> None:
    table = new_table(version)
    table.tree.make("web")
    row = table.add("web", lib.KL_POD, whole=True)
    table.tree.quota("web", 50_000)
    for _ in range(10):
        table.step()
    for turn in range(1, 4):
        table.tree.usage("web", turn * SECOND, 10 * turn, 5 * turn)
        if version is CgroupVersion.V1:
            table.tree.throttled("web", 10 * turn, 5 * turn)
        table.now_ns += SECOND
        flags = lib.KL_PASS_NOMINAL_TIME | lib.KL_PASS_THROTTLING
        assert lib.kl_table_pass(table.it, ffi.NULL, table.now_ns, flags, table.totals) == 0
    assert table.totals.throttled == 1
    assert table.totals.cpu[lib.KL_SUM_PODS].value == 1000
    numbers = ffi.new("int[]", 4)
    assert lib.kl_table_throttled(table.it, table.now_ns, numbers, 4) == 1
    assert numbers[0] == row


def test_v2_without_the_cpu_controller(new_table: NewTable) -> None:
    table = new_table(CgroupVersion.V2)
    row = table.make("pod")
    (table.tree.host.dir("cpu", "pod") / "cpu.max").unlink()
    table.step()
    table.tree.usage("pod", SECOND)
    assert table.step().errors == 0
    assert table.mcpu(row) == pytest.approx(1000)
    assert table.read(row).throttled_ns == lib.KL_NEVER


@BOTH
def test_a_cgroup_without_memory_controller_has_cpu(new_table: NewTable, version: CgroupVersion) -> None:
    table = new_table(version)
    table.tree.make("pod")
    for name in ("memory.stat", "memory.usage_in_bytes", "memory.current"):
        (table.tree.host.dir("memory", "pod") / name).unlink(missing_ok=True)
    row = table.add("pod", lib.KL_POD)
    table.step()
    totals = table.step()
    assert (totals.errors, totals.cpu[lib.KL_SUM_PODS].rows, totals.memory[lib.KL_SUM_PODS].rows) == (0, 1, 0)
    assert table.read(row).raw_ns == lib.KL_NEVER


@BOTH
def test_a_missing_cgroup_leaves_nothing_open(new_table: NewTable, version: CgroupVersion) -> None:
    table = new_table(version)
    assert table.add("nowhere", lib.KL_POD) < 0
    assert lib.kl_table_descriptors(table.it) == 0


def test_garbage_is_counted_and_keeps_the_old_value(new_table: NewTable) -> None:
    table = new_table(CgroupVersion.V1)
    row = table.make("pod")
    table.step()
    table.tree.put("cpuacct", "pod", "cpuacct.usage", "soon\n")
    totals = table.step()
    assert totals.errors == 1
    assert totals.cpu[lib.KL_SUM_PODS].missing == 1
    table.tree.usage("pod", SECOND)
    table.step()
    assert table.mcpu(row) == pytest.approx(500)  # averaged over the gap


def test_samples_go_to_the_rings_at_the_time_of_the_pass(new_table: NewTable) -> None:
    table = new_table(CgroupVersion.V1)
    rings = ffi.gc(lib.kl_rings_new(), lib.kl_rings_free)
    series = lib.kl_rings_open(rings, 10)
    table.add(table.tree.make("pod"), lib.KL_POD, cpu_series=series)
    for usage_s in range(4):
        table.tree.usage("pod", usage_s * SECOND)
        table.step(rings=rings)
    out = ffi.new("struct kl_aggregate *")
    assert lib.kl_rings_aggregate(rings, series, 0, 10_000, out) == 3
    assert (out.first_ms, out.latest_ms, out.avg) == (2000, 4000, pytest.approx(1000))


def test_row_numbers_are_reused_and_orphans_are_read_for_themselves(new_table: NewTable) -> None:
    table = new_table(CgroupVersion.V1)
    pod = table.make("pod")
    container = table.make("pod/c", lib.KL_CONTAINER, pod=pod)
    table.step()
    assert lib.kl_table_remove(table.it, pod) == 0
    assert lib.kl_table_remove(table.it, pod) < 0
    assert table.make("other") == pod
    table.step()
    assert table.step().skipped == 0
    assert table.mcpu(container) == 0.0
