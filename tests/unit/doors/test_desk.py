"""The desk, its time limit and the way to the loop."""

from __future__ import annotations

import select
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.doors.admission import HOLD_S, MAX_WAITING, Admitted, Inbox
from koordlet.doors.desk import UNCHANGED
from koordlet.doors.timebox import LateError, Timebox
from koordlet.model.effect import Effect
from koordlet.model.knob import RESTORE, Decision, Knob
from koordlet.model.pod import Pod
from koordlet.model.podevent import Hook, PodAnswer, PodEvent
from koordlet.model.qos import KubeQos
from tests.unit.doors.stand import Blocked, Stand

EVENT = PodEvent(
    Hook.PRE_RUN_POD_SANDBOX, Pod("u", "ns", "n", "kubepods/podu", KubeQos.GUARANTEED), cgroup="kubepods/podu"
)


def decision(target: str = "kubepods/podu", value: int = 2) -> Decision:
    return Decision(target, Knob.CPU_SHARES, value, (), "podrules")


def test_stuck_questions_use_up_their_threads_and_no_more() -> None:
    box, go, before = Timebox("t", threads=3), threading.Event(), threading.active_count()
    for _ in range(3):
        with pytest.raises(LateError, match="within"):
            box.ask(go.wait, 0.01)
    for _ in range(50):
        with pytest.raises(LateError, match="busy"):
            box.ask(lambda: 1, 5.0)
    assert threading.active_count() == before + 3
    go.set()
    while True:  # until the threads have noticed
        try:
            assert box.ask(lambda: 1, 5.0) == 1
            break
        except LateError:
            pass
    box.close()
    with pytest.raises(LateError):
        box.ask(lambda: 1, 1.0)


def test_an_error_is_the_askers() -> None:
    box = Timebox("t")
    with pytest.raises(ZeroDivisionError):
        box.ask(lambda: 1 // 0, 5.0)
    assert box.ask(lambda: 2, 5.0) == 2
    box.close()


def test_a_late_answers_wishes_are_thrown_away() -> None:
    blocked = Blocked()
    stand = Stand(blocked, limit_s=0.05)
    assert stand.desk.ask(EVENT, "nri") is UNCHANGED
    blocked.go.set()
    assert stand.inbox.take() == ([], [], False)
    stand.close()


def test_a_rules_fault_is_counted_and_the_others_values_go_out() -> None:
    stand = Stand(lambda event: PodAnswer(decisions=(decision(),), faults=("CoreSched: broken",)))
    assert stand.desk.ask(EVENT, "nri").decisions == (decision(),)
    assert stand.inbox.take() == ([decision()], [], False)
    assert stand.desk.figures()["hook_calls_total{door=nri,status=failed}"] == 1
    stand.close()


def test_what_must_come_first_is_waited_for() -> None:
    ahead = (Decision("kubepods/podu", Knob.CPU_BURST, RESTORE, (), "resize"),)
    stand = Stand(lambda event: PodAnswer(ahead=ahead))
    carried: list[Decision] = []

    def loop() -> None:
        select.select([stand.inbox], [], [], 20.0)
        carried.extend(stand.inbox.take()[0])
        stand.inbox.done()

    thread = threading.Thread(target=loop)
    thread.start()
    assert stand.desk.ask(EVENT, "nri").ahead == ahead
    assert tuple(carried) == ahead
    thread.join()
    assert "hook_late_total{door=nri}" not in stand.desk.figures()
    stand.close()


def test_a_loop_that_does_not_come_is_not_waited_for_long() -> None:
    stand = Stand(lambda event: PodAnswer(ahead=(decision(),)))
    assert stand.desk.ask(EVENT, "nri", 0.04).ahead == (decision(),)
    assert stand.desk.figures()["hook_late_total{door=nri}"] == 1
    stand.close()


def test_the_inbox_wakes_and_is_bounded() -> None:
    inbox = Inbox()
    assert select.select([inbox], [], [], 0)[0] == []
    inbox.put(news=True)
    assert select.select([inbox], [], [], 0)[0] == [inbox]
    assert inbox.take() == ([], [], True)
    assert select.select([inbox], [], [], 0)[0] == []
    for _ in range(MAX_WAITING + 5):
        inbox.put((decision(),))
    decisions, _, _ = inbox.take()
    assert (len(decisions), inbox.dropped) == (MAX_WAITING, 5)
    inbox.close()
    inbox.put((decision(),))  # a door's thread that comes late
    assert inbox.take() == ([], [], False)


def test_what_was_admitted_is_held_for_a_while() -> None:
    held, effect = Admitted(), Effect("pod-1", (), "podrules")
    held.add([decision(), decision(value=3), decision("")], [effect], 100.0)
    assert held.decisions == (decision(value=3),)
    before = held.decisions
    held.expire(100.0 + HOLD_S - 1)
    assert held.decisions is before
    assert list(held.with_effects([()])) == [effect]
    other = Effect("pod-1", (("a", 1),), "podrules")
    assert list(held.with_effects([(other,)])) == [other]
    held.expire(100.0 + HOLD_S)
    assert (held.decisions, held.effects) == ((), ())


@given(st.lists(st.tuples(st.sampled_from(["a", "b", ""]), st.integers(2, 9), st.floats(0, 100)), max_size=12))
def test_admitted_wishes_never_name_a_knob_twice_nor_the_root(rows: list[tuple[str, int, float]]) -> None:
    held = Admitted()
    for target, value, now_s in sorted(rows, key=lambda row: row[2]):
        held.expire(now_s)
        held.add([decision(target, value)], [], now_s)
    keys = [d.key for d in held.decisions]
    assert len(set(keys)) == len(keys)
    assert all(d.target for d in held.decisions)
