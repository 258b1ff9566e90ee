"""A runtime's words become an event that says what the container is meant to have by now."""

from __future__ import annotations

from koordlet.decide.podrules import PodContext, answer
from koordlet.model.cpuset import CpuSet
from koordlet.model.pod import Container, Pod, Resources
from koordlet.model.podevent import Hook, LinuxResources
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.view import NodeInfo, Policy
from koordlet.sources.sandbox import Sandbox, SandboxContainer
from tests.unit.doors.stand import Stand

GROUP = "kubepods/burstable/podu1"
SANDBOX = Sandbox("u1", "lab", "web", "sb1", f"/{GROUP}", labels={"koordinator.sh/qosClass": "LS"})
CONTEXT = PodContext(Policy(gates=frozenset({"CPUNormalization"})), NodeInfo(cpu_normalization_ratio=1.2))


def test_an_update_of_the_cpus_amid_a_resize_does_not_bring_the_old_quota_back() -> None:
    """The kubelet's CPU manager and its resize update the same container, and its list of pods is behind both."""
    main = Container("main", "containerd://c1", f"{GROUP}/c1", running=True, limits=Resources(cpu_mcpu=400))
    stand = Stand(lambda event: answer(event, CONTEXT))
    stand.known["u1"] = Pod("u1", "lab", "web", GROUP, KubeQos.BURSTABLE, Qos.LS, containers=(main,))
    teller = stand.teller()

    def quota_us(now_s: float, **asked: object) -> int | None:
        """Of the reply."""
        told = SandboxContainer("main", "c1", f"/{GROUP}/c1", running=True)
        resources = LinuxResources(**asked)  # type: ignore[arg-type]
        return teller.container(
            Hook.PRE_UPDATE_CONTAINER, SANDBOX, told, now_s, asked=resources, limit_s=0.04
        ).resources.cpu_quota_us

    assert quota_us(1.0, cpuset=CpuSet([0])) == 33_334
    assert quota_us(2.0, cpu_quota_us=10_000) == 8_334
    assert quota_us(2.5, cpuset=CpuSet([0])) == 8_334
    assert stand.events[1].container is not None
    assert stand.events[1].container.limits.cpu_mcpu == 400  # what it had until now, to see which way it goes
    assert quota_us(60.0, cpuset=CpuSet([0])) == 33_334
    stand.close()
