"""What waits for its turn while the node is calm, and whose plain memory usage is worth a look."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koordlet._native import ffi, lib
from koordlet.kernel.host import CgroupVersion
from tests.native.tables import MIB, SECOND, SUMS, Table
from tests.native.trees import Tree

if TYPE_CHECKING:
    from koordlet._native import CData

MS = 10**6


class Calm(Table):
    """Every pass is a calm one unless told otherwise; `used` says what each cgroup uses in every second."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree)
        self.used: dict[str, int] = {}
        self.total: dict[str, int] = {}

    def second(self, seconds: float = 1.0, *, calm: bool = True, rings: CData = ffi.NULL) -> int:
        """Counters read in the pass at its end."""
        for cgroup, mcpu in self.used.items():
            self.total[cgroup] = self.total.get(cgroup, 0) + round(mcpu * MS * seconds)
            self.tree.usage(cgroup, self.total[cgroup])
        return int(self.step(seconds, rings, flags=lib.KL_PASS_CALM if calm else 0).counters)

    def settled(self) -> None:
        """Everybody has a rate."""
        self.second(calm=False)
        self.second(calm=False)


@pytest.fixture(params=list(CgroupVersion), ids=str)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Calm:
    return Calm(Tree(tmp_path, request.param))


def pods(table: Calm, count: int, mcpu: int) -> list[int]:
    names = [f"pod{i}" for i in range(count)]
    table.used |= dict.fromkeys(names, mcpu)
    return [table.make(name) for name in names]


def test_who_uses_little_is_read_in_every_third_pass(table: Calm) -> None:
    rows = pods(table, 30, 3)
    table.settled()
    read = dict.fromkeys(rows, 0)
    counters = []
    for _ in range(9):
        counters.append(table.second())
        for row in rows:
            read[row] += table.mcpu(row) is not None
    assert set(read.values()) == {3}
    assert sum(counters) == 3 * 30
    assert max(counters) <= 14  # spread, though not evenly
    assert all(table.read(row).mcpu == pytest.approx(3) for row in rows)


def test_what_waits_stays_in_the_sums_and_is_never_older_than_two_seconds(table: Calm) -> None:
    rows = pods(table, 30, 2)
    table.settled()
    for _ in range(9):
        table.second()
        group = table.totals.cpu[lib.KL_SUM_PODS]
        assert (group.rows, group.missing) == (30, 0)
        assert group.value == pytest.approx(60)
        assert min(table.read(row).mcpu_ns for row in rows) >= table.now_ns - 2 * SECOND


def test_when_the_node_is_not_calm_everybody_is_read(table: Calm) -> None:
    rows = pods(table, 30, 2)
    table.settled()
    table.second()
    table.used |= dict.fromkeys(table.used, 40)
    assert table.second(calm=False) == 30
    # What one used while it waited is not taken for use of the last second, nor the other way round.
    assert all(table.read(row).mcpu == pytest.approx(40) for row in rows)
    assert table.second() == 30  # those are not little any more


def test_one_that_takes_over_from_another_is_read_though_the_node_uses_as_much(table: Calm) -> None:
    pods(table, 12, 0)
    table.used["busy"] = 3_000
    busy = table.make("busy")
    table.settled()
    for _ in range(3):
        table.second()
    for heir in ("pod3", "pod4", "pod5"):
        before = [name for name, mcpu in table.used.items() if mcpu]
        table.used |= dict.fromkeys(before, 0) | {heir: 3_000}
        table.second()
        assert table.totals.cpu[lib.KL_SUM_PODS].value == pytest.approx(3_000)
        table.second()
        table.second()
    assert table.read(busy).mcpu == 0


def test_averages_and_percentiles_are_as_without_waiting(table: Calm) -> None:
    """A second in which a pod did little counts as much as one in which it worked."""
    rings = ffi.gc(lib.kl_rings_new(), lib.kl_rings_free)
    series = lib.kl_rings_open(rings, 60)
    table.used["pod"] = 2
    table.add(table.tree.make("pod"), lib.KL_POD, cpu_series=series)
    table.settled()
    for second in range(60):
        burst = second >= 55
        table.used["pod"] = 2_000 if burst else 2
        table.second(calm=second not in (55,), rings=rings)
    found = ffi.new("struct kl_aggregate *")
    assert lib.kl_rings_aggregate(rings, series, 0, table.now_ns // MS, found) == 60
    assert found.avg == pytest.approx((55 * 2 + 5 * 2_000) / 60)
    assert found.p90 == pytest.approx(2)


def test_who_uses_more_or_was_never_measured_does_not_wait(table: Calm) -> None:
    pods(table, 3, 50)
    table.settled()
    assert table.second() == 3
    table.make("new")
    assert table.second() == 4
    assert table.second() == 4  # no rate yet


def test_roots_and_host_applications_do_not_wait(table: Calm) -> None:
    table.make("besteffort", lib.KL_ROOT)
    table.make("redis", lib.KL_HOST)
    table.settled()
    assert [table.second() for _ in range(4)] == [2] * 4


@pytest.mark.parametrize("interval_s", [2.0, 3.0, 10.0])
def test_at_longer_intervals_nobody_waits(table: Calm, interval_s: float) -> None:
    rows = pods(table, 10, 2)
    table.settled()
    assert [table.second(interval_s) for _ in range(4)] == [10] * 4
    assert all(table.mcpu(row) == pytest.approx(2) for row in rows)


def test_containers_wait_with_their_pod(table: Calm) -> None:
    names = [f"pod{i}" for i in range(12)]
    made = [table.make(name) for name in names]
    inside = [table.make(f"{name}/c", lib.KL_CONTAINER, pod=row) for name, row in zip(names, made, strict=True)]
    table.used = dict.fromkeys((*names, *(f"{name}/c" for name in names)), 3)
    table.settled()
    for _ in range(6):
        table.second()
        for pod, container in zip(made, inside, strict=True):
            assert (table.mcpu(pod) is None) == (table.mcpu(container) is None)
    table.used["pod5"] = table.used["pod5/c"] = 60
    for _ in range(4):
        table.second()
    assert table.mcpu(inside[5]) == pytest.approx(60)


def test_a_container_with_a_quota_does_not_wait(table: Calm) -> None:
    pod = table.make("pod")
    container = table.make("pod/c", lib.KL_CONTAINER, pod=pod)
    table.tree.quota("pod/c", 10_000)
    table.used = {"pod": 3, "pod/c": 3}
    for _ in range(12):  # its quota comes round in turn
        table.second(calm=False)
    assert table.read(container).quota
    for _ in range(4):
        table.second()
        assert table.mcpu(container) is not None


def test_memory_that_grows_while_its_pod_hardly_runs_comes_round_in_turn(table: Calm) -> None:
    """A millisecond of CPU is enough to be charged for some megabytes, so before that there is nothing to see."""
    rows = pods(table, 10, 0)
    table.settled()
    raws = []
    for second in range(12):
        table.tree.memory("pod0", (second + 1) * MIB)
        table.second(calm=False)
        raws.append(table.totals.raws)
    assert set(raws) == {1}  # that in turn
    assert table.now_ns - table.read(rows[0]).raw_ns <= 9 * SECOND
    table.used["pod0"] = 1
    table.second(calm=False)
    assert table.read(rows[0]).raw_ns == table.now_ns
    assert table.read(rows[0]).raw == 12 * MIB


def test_sums_of_a_busy_node_are_as_without_waiting(table: Calm, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = Calm(Tree(tmp_path_factory.mktemp("other"), table.tree.version))
    both: list[tuple[Calm, bool]] = [(table, True), (other, False)]
    for one, calm in both:
        for name, be, mcpu in (("web", False, 700), ("batch", True, 300), ("small", False, 2)):
            one.make(name, be=be)
            one.used[name] = mcpu
        one.settled()
        for _ in range(5):
            one.second(calm=calm)
    found = [[one.totals.cpu[group].value for group in SUMS] for one, _ in both]
    assert found[0] == pytest.approx(found[1])
