"""Closed loop in virtual time: best effort's cache and bandwidth slow an online workload by a known curve.

The plant gives cycles per instruction as a function of what best effort may use; the analysis, the strategy and the
lines it asks for are the real ones. Time goes in the controller's samples of 5 s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from koordlet.decide.resctrl import RESCTRL, State
from koordlet.kernel.resctrl import parse_schemata
from koordlet.model.hardware import Hardware, Online
from koordlet.model.pod import Pod, PodSet
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.resctrl import BandwidthLine, CacheLine, Resctrl, ResctrlGroup
from koordlet.model.slo import NodeSlo, ResctrlQos
from koordlet.model.view import NodeView, Policy
from koordlet.store.interference import Activity, Interference, Sample

STEP_S = 5.0
BASE = 1.2
WAYS = 11
INFO = Resctrl((CacheLine("L3", (0,), 0x7FF),), (BandwidthLine("MB", (0,)),), 8)
Curve = Callable[[int, int], float]
"""(ways, bandwidth percent) of best effort -> slow-down of the online side, 0 is none."""


def cache_bound(ways: int, percent: int) -> float:
    return max(0.0, 0.08 * (ways - 4))


def bandwidth_bound(ways: int, percent: int) -> float:
    return max(0.0, 0.012 * (percent - 40))


def both(ways: int, percent: int) -> float:
    return max(0.0, 0.04 * (ways - 3)) + max(0.0, 0.006 * (percent - 30))


def steep(ways: int, percent: int) -> float:
    return 0.0 if ways <= 2 and percent <= 20 else 0.5


@dataclass
class Plant:
    curve: Curve
    be: ResctrlQos = field(default_factory=lambda: ResctrlQos(True, 0, 100, 100))
    noise: Callable[[int], float] = lambda step: 0.0

    def __post_init__(self) -> None:
        self.policy = Policy(slo=NodeSlo(be_resctrl=self.be), gates=frozenset({"RdtResctrl"}), resctrl_dynamic=True)
        pods = (
            Pod("web", "ns", "web", "kubepods/podweb", KubeQos.GUARANTEED, qos=Qos.LS),
            Pod("job", "ns", "job", "kubepods/podjob", KubeQos.BESTEFFORT, qos=Qos.BE),
        )
        self.pods = PodSet(pods, 1, 0.0)
        self.state: State = RESCTRL.initial()
        self.analysis = Interference()
        self.now_s, self.step = 1000.0, 0
        self.caps = (WAYS, 100)
        self.online: tuple[Online, ...] = ()

    def cpi(self, running: bool) -> float:
        return BASE * (1 + (self.curve(*self.caps) if running else 0.0))

    def round(self, running: bool, *, sample: bool = True) -> float:
        """One sample and decision; the CPI that the online side had in it."""
        self.now_s += STEP_S
        self.step += 1
        cpi = self.cpi(running)
        if sample:
            seen = cpi * (1 + self.noise(self.step))
            batch = {"ns/job": Activity(3000.0)} if running else {"ns/job": Activity(0.0)}
            self.online, _ = self.analysis.add(self.now_s, [Sample("ns/web", "cpi", seen)], batch)
        view = NodeView(
            now_s=self.now_s,
            pods=replace(self.pods, at_s=self.now_s),
            hardware=Hardware(resctrl=INFO, online=self.online),
        )
        outcome = RESCTRL.decide(view, self.policy, self.state, self.now_s)
        self.state = outcome.state
        (group,) = [e for e in outcome.effects if isinstance(e, ResctrlGroup) and e.target == "BE"]
        lines = parse_schemata("\n".join(group.schemata))
        self.caps = (int(lines["L3"][0], 16).bit_count(), int(lines["MB"][0]))
        return cpi

    def learn(self) -> None:
        for _ in range(10):
            self.round(running=False)

    def oracle(self) -> float:
        """The largest share that best effort could have without slowing the online side by more than 10 %."""
        return max(
            share(ways, percent)
            for ways in range(1, self.most[0] + 1)
            for percent in range(10, self.most[1] + 1, 10)
            if self.curve(ways, percent) <= 0.10
        )

    @property
    def most(self) -> tuple[int, int]:
        return (-(-WAYS * self.be.cat_end_percent // 100), self.be.mba_percent)


def share(ways: int, percent: int) -> float:
    return (ways / WAYS + percent / 100) / 2


CURVES = (cache_bound, bandwidth_bound, both, steep)


@pytest.mark.parametrize("curve", CURVES)
def test_the_online_side_is_back_within_a_tenth_in_half_a_minute(curve: Curve) -> None:
    plant = Plant(curve)
    plant.learn()
    began_s, back_s = plant.now_s, None
    for _ in range(12):
        plant.round(running=True)
        if back_s is None and plant.cpi(True) <= BASE * 1.10:
            back_s = plant.now_s
    assert back_s is not None
    assert back_s - began_s <= 30.0


@pytest.mark.parametrize("curve", CURVES)
def test_best_effort_keeps_half_of_what_an_oracle_would_leave(curve: Curve) -> None:
    plant = Plant(curve)
    plant.learn()
    kept, slow = [], 0
    for step in range(120):
        cpi = plant.round(running=True)
        kept.append(share(*plant.caps))
        slow += step >= 6 and cpi > BASE * 1.10
    assert sum(kept) / len(kept) >= 0.5 * plant.oracle()
    assert slow <= 12  # a raise too far is taken back at the next sample


@pytest.mark.parametrize("curve", CURVES)
def test_limits_of_the_policy_are_never_exceeded(curve: Curve) -> None:
    plant = Plant(curve, ResctrlQos(True, 0, 50, 60))
    plant.learn()
    for _ in range(60):
        plant.round(running=True)
        assert plant.caps[0] <= 6
        assert plant.caps[1] <= 60
        assert plant.caps[0] >= 1
        assert plant.caps[1] >= 10


def test_without_interference_nothing_is_taken() -> None:
    plant = Plant(lambda ways, percent: 0.0, noise=lambda step: 0.03 * (-1) ** step)
    plant.learn()
    for _ in range(60):
        plant.round(running=True)
        assert plant.caps == (WAYS, 100)


def test_everything_comes_back_slowly_when_it_is_over() -> None:
    plant = Plant(both)
    plant.learn()
    for _ in range(20):
        plant.round(running=True)
    low = plant.caps
    before = share(*low)
    for _ in range(100):
        plant.round(running=False)
        now = share(*plant.caps)
        assert now - before <= 0.06
        before = now
    assert plant.caps == (WAYS, 100)


def test_stale_samples_freeze() -> None:
    plant = Plant(both)
    plant.learn()
    for _ in range(3):
        plant.round(running=True)
    caps = plant.caps
    for _ in range(30):
        plant.round(running=True, sample=False)
        assert plant.caps == caps


def test_before_there_is_a_baseline_nothing_is_taken() -> None:
    plant = Plant(both)
    for _ in range(6):
        plant.round(running=True)
        assert plant.caps == (WAYS, 100)


def test_off_by_default() -> None:
    plant = Plant(both)
    plant.policy = replace(plant.policy, resctrl_dynamic=False)
    plant.learn()
    for _ in range(20):
        plant.round(running=True)
    assert plant.caps == (WAYS, 100)
