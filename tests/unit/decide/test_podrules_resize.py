"""What is given back before a container's quota is changed in place, and of whom."""

from __future__ import annotations

from typing import Any

import pytest

from koordlet.decide.podrules import PodContext, answer
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import RESTORE, Knob
from koordlet.model.pod import Container, Pod, Resources, Tree
from koordlet.model.podevent import Hook, LinuxResources, PodEvent
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.view import Policy

POD, MAIN, SIDE = "kubepods/podu", "kubepods/podu/m", "kubepods/podu/s"


def both(limit_mcpu: int | None = 200, other_mcpu: int | None = 100) -> tuple[Container, Container]:
    return (
        Container("main", cgroup=MAIN, running=True, limits=Resources(cpu_mcpu=limit_mcpu)),
        Container("side", cgroup=SIDE, running=True, limits=Resources(cpu_mcpu=other_mcpu)),
    )


def ahead(
    asked: LinuxResources,
    hook: Hook = Hook.PRE_UPDATE_CONTAINER,
    gates: tuple[str, ...] = ("CPUBurst",),
    containers: tuple[Container, ...] = both(),
    **of: Any,
) -> dict[tuple[str, Knob], Any]:
    found = Pod("u", "shop", "web", POD, KubeQos.BURSTABLE, containers=containers, **of)
    event = PodEvent(hook, found, containers[0], MAIN, asked=asked)
    decisions = answer(event, PodContext(Policy(gates=frozenset(gates)))).ahead
    assert {decision.owner for decision in decisions} <= {"resize"}
    assert all(decision.at_least is (decision.value is not RESTORE) for decision in decisions)
    return {decision.key: decision.value for decision in decisions}


ALL = {(group, knob): RESTORE for group in (POD, MAIN, SIDE) for knob in (Knob.CPU_QUOTA, Knob.CPU_BURST)}
SMALLER = LinuxResources(cpu_quota_us=10_000, cpu_period_us=100_000)
LARGER = LinuxResources(cpu_quota_us=40_000, cpu_period_us=100_000)


@pytest.mark.parametrize("qos", [Qos.LS, Qos.SYSTEM, None])
@pytest.mark.parametrize("gate", ["CPUBurst", "CPUNormalization"])
def test_a_smaller_quota_finds_nothing_of_ours_in_the_pod(qos: Qos | None, gate: str) -> None:
    assert ahead(SMALLER, qos=qos, gates=(gate,)) == ALL
    assert ahead(LinuxResources(cpu_quota_us=-1), qos=qos, gates=(gate,)) == ALL


def test_a_larger_quota_finds_a_pod_that_is_wide_enough() -> None:
    """The recorded quota would be too small, ours may be below or above what the kubelet wrote or will write."""
    assert ahead(LARGER) == {**ALL, (POD, Knob.CPU_QUOTA): 50_000}
    assert ahead(LARGER, containers=both()[:1]) == {
        key: 40_000 if key == (POD, Knob.CPU_QUOTA) else value for key, value in ALL.items() if key[0] != SIDE
    }


def test_a_pod_with_an_unlimited_container_is_unlimited_itself() -> None:
    assert ahead(LARGER, containers=both(200, None)) == ALL


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"asked": LinuxResources(cpuset=CpuSet([1]))}, id="only the CPU manager"),
        pytest.param({"hook": Hook.PRE_CREATE_CONTAINER}, id="a new container"),
        pytest.param({"gates": ("BatchResource",)}, id="nobody bursts"),
        pytest.param({"qos": Qos.BE}, id="best effort"),
        pytest.param({"qos": Qos.LSR}, id="LSR"),
        pytest.param({"cpuset": CpuSet([1])}, id="CPUs of its own"),
        pytest.param({"tree": Tree.OURS}, id="declared"),
    ],
)
def test_nothing_where_nothing_of_ours_is_in_the_way(more: dict[str, Any]) -> None:
    assert ahead(**{"asked": SMALLER, **more}) == {}
