"""The ring store by series names: windows, capacities, forgetting. Percentiles are tested in tests/native."""

from __future__ import annotations

import threading

import pytest

from koordlet.store.rings import NODE_SAMPLES, WORKLOAD_SAMPLES, RingStore


def test_window_of_the_last_seconds() -> None:
    rings = RingStore()
    for second in range(10):
        rings.push(rings.open("pod", "u", "cpu"), float(second), second * 100.0)
    found = rings.window("pod", "u", "cpu", 3.0, now_s=9.0)
    assert found is not None
    assert (found.count, found.min, found.max, found.latest) == (4, 600.0, 900.0, 900.0)
    assert (found.first_s, found.latest_s, found.duration_s) == (6.0, 9.0, 3.0)


@pytest.mark.parametrize("name", [("pod", "v", "cpu"), ("pod", "u", "memory"), ("node", "", "cpu")])
def test_no_samples_is_no_aggregate(name: tuple[str, str, str]) -> None:
    rings = RingStore()
    rings.push(rings.open("pod", "u", "cpu"), 1.0, 1.0)
    assert rings.latest(*name) is None
    assert rings.window(*name, 10.0, now_s=2.0) is None


@pytest.mark.parametrize(("kind", "samples"), [("pod", WORKLOAD_SAMPLES), ("node", NODE_SAMPLES)])
def test_the_oldest_samples_make_room(kind: str, samples: int) -> None:
    rings = RingStore()
    for second in range(samples + 5):
        rings.push(rings.open(kind, "x", "cpu"), float(second), 1.0)
    found = rings.latest(kind, "x", "cpu")
    assert found is not None
    assert (found.count, found.first_s) == (samples, 5.0)


def test_a_closed_workload_is_forgotten() -> None:
    rings = RingStore()
    rings.push(rings.open("pod", "u", "cpu"), 1.0, 1.0)
    rings.push(rings.open("pod", "u", "memory"), 1.0, 1.0)
    assert len(rings) == 2
    rings.close("pod", "u")
    rings.close("pod", "u")
    assert len(rings) == 0
    assert rings.open("pod", "u", "cpu") == rings.open("pod", "u", "cpu")
    assert rings.latest("pod", "u", "cpu") is None


def test_other_threads_may_ask_while_series_come_and_go() -> None:
    rings = RingStore()
    done = threading.Event()
    wrong: list[float] = []

    def ask() -> None:
        while not done.is_set():
            found = rings.latest("pod", "even", "cpu")
            if found is not None and found.max != found.min:
                wrong.append(found.max)

    asking = threading.Thread(target=ask)
    asking.start()
    for round_number in range(2000):
        rings.push(rings.open("pod", "even", "cpu"), float(round_number), 2.0)
        rings.push(rings.open("pod", "odd", "cpu"), float(round_number), 3.0)
        rings.close("pod", "even" if round_number % 2 else "odd")
    done.set()
    asking.join()
    assert wrong == []
