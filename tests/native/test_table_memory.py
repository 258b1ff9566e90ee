"""When the table reads memory, and when it takes it for read."""

from __future__ import annotations

from koordlet._native import lib
from koordlet.kernel.host import CgroupVersion
from tests.native.tables import BOTH, MIB, SECOND, NewTable


def test_dear_files_come_round_in_turn(new_table: NewTable) -> None:
    table = new_table(CgroupVersion.V1)
    pods = [table.make(f"pod{i}") for i in range(30)]
    containers = [table.make(f"pod{i}/c", lib.KL_CONTAINER, pod=pods[i]) for i in range(30)]
    assert table.step().memory_stats == 30  # every pod at once
    memory_stats, quotas = [], []
    for _ in range(60):
        totals = table.step()
        memory_stats.append(totals.memory_stats)
        quotas.append(totals.quotas)
    assert max(memory_stats) <= 6
    assert sum(quotas) <= 60 + 50  # each once, and once more in the first round
    assert table.now_ns - min(table.read(row).memory_ns for row in pods) <= 9 * SECOND
    assert table.now_ns - min(table.read(row).memory_ns for row in containers) <= 19 * SECOND


def test_memory_that_moved_is_read_at_once_within_a_budget(new_table: NewTable) -> None:
    table = new_table(CgroupVersion.V1)
    pods = [table.make(f"pod{i}") for i in range(40)]

    def step() -> int:
        for i in range(40):
            table.tree.usage(f"pod{i}", table.now_ns)
        return int(table.step().memory_stats)

    for i in range(40):
        table.tree.memory(f"pod{i}", 100 * MIB)
    step()
    for i in range(40):
        table.tree.memory(f"pod{i}", 120 * MIB)
    # 4 by rotation and 8 that moved, per pass, some of them twice.
    for _ in range(5):
        assert step() <= 12
    assert [table.read(row).memory for row in pods] == [120 * MIB] * 40
    table.tree.memory("pod0", 121 * MIB)  # less than 2 %
    before_ns = table.read(pods[0]).memory_ns
    assert step() == 4
    assert table.read(pods[0]).memory_ns in (before_ns, table.now_ns)


@BOTH
def test_memory_of_what_stands_still_is_repeated_and_read_now_and_then(
    new_table: NewTable, version: CgroupVersion
) -> None:
    table = new_table(version)
    pods = [table.make(f"pod{i}") for i in range(10)]
    containers = [table.make(f"pod{i}/c", lib.KL_CONTAINER, pod=pods[i]) for i in range(10)]

    def passes(count: int) -> int:
        """memory.stat files read in so many passes; no value is older than its row's turns."""
        read = sum(table.step().memory_stats for _ in range(count))
        assert table.now_ns - min(table.read(row).memory_ns for row in pods) <= 9 * SECOND
        assert table.now_ns - min(table.read(row).memory_ns for row in containers) <= 19 * SECOND
        return read

    table.tree.memory("pod3", 100 * MIB)
    table.tree.memory("pod3/c", 60 * MIB)
    passes(20)
    # In 120 passes a pod has 12 turns and a container 6, of which every fourth reads.
    assert 40 <= passes(120) <= 50

    table.tree.memory("pod3", 90 * MIB)  # reclaimed
    table.tree.memory("pod3/c", 50 * MIB)
    passes(30)
    assert (table.read(pods[3]).memory, table.read(containers[3]).memory) == (90 * MIB, 50 * MIB)


def test_memory_of_what_ran_is_read_although_as_much_is_charged(new_table: NewTable) -> None:
    table = new_table(CgroupVersion.V1)
    pod = table.make("pod")
    table.tree.memory("pod", 100 * MIB)
    for _ in range(12):
        table.step()
    table.tree.usage("pod", 1)
    table.tree.memory("pod", 99 * MIB, file=MIB)
    for _ in range(10):
        table.step()
    assert table.read(pod).memory == 99 * MIB
