"""Whatever is done to a machine, some things hold. No mount: these run everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.labs.resctrl import shapes, text
from tests.labs.resctrl.model import Group, Machine
from tests.labs.resctrl.schemata import lowest_run
from tests.labs.resctrl.tasks import Caller, Tasks

TIDS = (11, 12, 13)
NAMES = ("intel", "intel-cdp", "haswell", "intel-l2", "amd-smba", "intel-sparse", "few-rmids")

domains = st.integers(0, 4)
masks = st.one_of(
    st.integers(0, 0x1FFFFF), st.tuples(st.integers(0, 19), st.integers(1, 8)).map(lambda t: ((1 << t[1]) - 1) << t[0])
)
cells = st.tuples(
    domains, st.one_of(masks.map(lambda m: f"{m:x}"), st.integers(0, 120).map(str), st.text("0f=x ", max_size=4))
)
lines = st.tuples(
    st.sampled_from(["L3", "MB", "L2", "SMBA", "L3CODE", "L3DATA"]), st.lists(cells, min_size=1, max_size=3)
).map(lambda t: f"{t[0]}:{';'.join(f'{d}={v}' for d, v in t[1])}")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("mkdir"), st.integers(0, 3), st.just("")),
        st.tuples(st.just("mkmon"), st.integers(0, 3), st.just("")),
        st.tuples(st.just("rmdir"), st.integers(0, 3), st.just("")),
        st.tuples(st.just("schemata"), st.integers(0, 3), st.lists(lines, min_size=1, max_size=3).map("\n".join)),
        st.tuples(st.just("tasks"), st.integers(0, 3), st.lists(st.sampled_from([*TIDS, 99]), max_size=3)
                  .map(lambda tids: ",".join(map(str, tids)))),
        st.tuples(st.just("mode"), st.integers(0, 3), st.sampled_from(["shareable", "exclusive", "pseudo-locksetup"])),
        st.tuples(st.just("cpus"), st.integers(0, 3), st.sampled_from(["0-3", "7", "", "2,5-6", "9"])),
    ),
    max_size=25,
)  # fmt: skip


def act(machine: Machine, op: str, index: int, value: str) -> None:
    group = machine.groups[index % len(machine.groups)]
    if op == "mkdir":
        machine.mkdir_ctrl("g")
    elif op == "mkmon":
        machine.mkdir_mon(group, "m")
    elif op == "rmdir":
        machine.rmdir(group)
    elif op == "schemata":
        machine.schemata.write(group, value + "\n")
    elif op == "tasks":
        machine.tasks_write(group, value + "\n", Caller())
    elif op == "mode":
        machine.mode_write(group, value + "\n")
    else:
        machine.cpus_write(group, value + "\n", text.cpu_list)


def check(machine: Machine) -> None:
    living = [g for g in machine.groups if g.mode != "pseudo-locked"]
    closids = {g.closid for g in living}
    assert len(closids) == len(living)
    assert not closids & machine.free_closids
    assert len(closids | machine.free_closids) == machine.schemata.num_closids
    everywhere = [tid for g in machine.groups if not g.locking for tid in machine.members(g)]
    assert sorted(everywhere) == sorted(TIDS)
    cpus = [n for g in machine.groups for n in g.cpus]
    assert sorted(cpus) == list(range(machine.shape.cpus))
    for group in machine.groups:
        assert all(child.cpus <= group.cpus for child in group.children)
        check_masks(machine, group)
    if machine.monitor is not None:
        used = [r for g in machine.groups if not g.locking for r in machine.rmids(g)]
        assert sorted([*used, *machine.monitor.free, *machine.monitor.limbo]) == list(
            range(machine.monitor.has.num_rmids)
        )


def check_masks(machine: Machine, group: Group) -> None:
    if group.locking:
        return
    for schema in machine.schemata.lines:
        for domain, values in schema.values.items():
            mine = values[group.closid]
            if isinstance(schema.resource, shapes.Bandwidth):
                assert schema.resource.min_bw <= mine <= schema.resource.max_bw
                assert mine % schema.resource.gran == 0
                continue
            assert mine <= schema.resource.full
            assert mine.bit_count() >= schema.resource.min_cbm_bits
            assert schema.resource.sparse or mine == lowest_run(mine)
            for other in machine.groups:
                if group.mode == "exclusive" and other is not group and not other.locking:
                    assert not any(mine & peer.values[domain][other.closid] for peer in schema.peers)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(NAMES), steps)
def test_invariants(name: str, plan: list[tuple[str, int, str]]) -> None:
    tasks = Tasks(real=False)
    for tid in TIDS:
        tasks.fork(tid)
    machine = Machine(shapes.of(name), tasks)
    for op, index, value in plan:
        before = [machine.schemata.show(g) for g in machine.groups]
        try:
            act(machine, op, index, value)
        except OSError:
            assert before == [machine.schemata.show(g) for g in machine.groups]
        else:
            if op != "rmdir":  # which sets no status
                assert machine.status.show() == "ok\n"
        check(machine)
    for group in machine.groups:
        if not group.locking and machine.schemata.lines:
            shown = machine.schemata.show(group)
            machine.schemata.write(group, shown)
            assert machine.schemata.show(group) == shown


@given(st.sets(st.integers(0, 99)), st.integers(100, 130))
def test_cpu_masks_and_lists_read_back(cpus: set[int], bits: int) -> None:
    assert text.cpu_mask(text.show_mask(cpus, bits) + "\n", bits) == cpus
    assert text.cpu_list(text.show_list(cpus) + "\n", bits) == cpus


@pytest.mark.parametrize(
    ("source", "base", "bits", "signed", "value"),
    [
        ("10\n", 10, 64, False, 10),
        ("+7", 10, 64, False, 7),
        ("0x1f", 0, 32, True, 31),
        ("010", 0, 32, True, 8),
        ("0xF", 16, 64, False, 15),
        ("-5", 0, 32, True, -5),
        ("4294967295", 10, 32, False, 4294967295),
        ("4294967296", 10, 32, False, None),
        ("2147483648", 0, 32, True, None),
        ("-5", 10, 64, False, None),
        (" 5", 10, 64, False, None),
        ("5 ", 10, 64, False, None),
        ("5\n\n", 10, 64, False, None),
        ("08", 0, 32, True, None),
        ("0x", 16, 64, False, None),
        ("", 10, 64, False, None),
    ],
)
def test_numbers_as_the_kernel_reads_them(source: str, base: int, bits: int, signed: bool, value: int | None) -> None:
    if value is None:
        with pytest.raises(ValueError):  # noqa: PT011 - the text is the input
            text.number(source, base, bits, signed)
    else:
        assert text.number(source, base, bits, signed) == value
