"""cpu.idle on a best-effort pod: where it may lie, and that it is gone before a kubelet writes the weight again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordlet.decide.podrules import PodContext, answer
from koordlet.model.knob import RESTORE, Knob
from koordlet.model.pod import Container, Pod, Tree
from koordlet.model.podevent import Hook, PodEvent
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.support import Capability, Level, Support
from koordlet.model.view import Policy

GROUP = "kubepods/besteffort/podu"
MAIN = Container("main", "containerd://c1")
POD = Pod("u", "shop", "job", GROUP, KubeQos.BESTEFFORT, qos=Qos.BE, containers=(MAIN,))
IDLE = Support({Knob.CPU_IDLE: Capability(Knob.CPU_IDLE, Level.NATIVE, "probed")})


def context(**policy: Any) -> PodContext:
    asked = {"idle_on_be_pods": True, "kubelet": True, "hooked": True, **policy}
    return PodContext(Policy(gates=frozenset({"GroupIdentity"}), **asked), support=IDLE)


@pytest.mark.parametrize(
    ("pod", "policy", "idles"),
    [
        pytest.param(POD, {}, True, id="NRI-tells-of-its-end"),
        pytest.param(POD, {"hooked": False}, False, id="nobody-would-tell"),
        pytest.param(POD, {"hooked": False, "kubelet": False}, True, id="no-kubelet-writes"),
        pytest.param(POD, {"idle_on_be_pods": False}, False, id="not-asked-for"),
        pytest.param(POD, {"identity": False}, False, id="no-identity"),
        pytest.param(replace(POD, terminating=True), {}, False, id="asked-to-end"),
        pytest.param(replace(POD, containers=(Container("main"),)), {}, False, id="being-made"),
        pytest.param(replace(POD, tree=Tree.OURS), {}, False, id="a-tree-of-ours"),
        pytest.param(replace(POD, qos=Qos.LS, kube_qos=KubeQos.BURSTABLE), {}, False, id="online"),
    ],
)
def test_which_pods_idle(pod: Pod, policy: dict[str, Any], idles: bool) -> None:
    decisions = answer(PodEvent(Hook.RECONCILE, pod, cgroup=GROUP), context(**policy)).decisions
    assert [d.value for d in decisions if d.knob is Knob.CPU_IDLE] == [1] * idles


def test_a_pod_idles_from_its_sandbox_on() -> None:
    """Before its first instruction."""
    decisions = answer(
        PodEvent(Hook.PRE_RUN_POD_SANDBOX, replace(POD, containers=()), cgroup=GROUP), context()
    ).decisions
    assert [d.value for d in decisions if d.knob is Knob.CPU_IDLE] == [1]


@pytest.mark.parametrize(
    ("pod", "policy", "given_back"),
    [
        pytest.param(POD, {}, True, id="ended"),
        pytest.param(replace(POD, terminating=True), {}, True, id="ended-as-asked"),
        pytest.param(POD, {"hooked": False}, True, id="told-by-the-proxy"),
        pytest.param(POD, {"idle_on_be_pods": False}, False, id="never-set"),
        pytest.param(replace(POD, cgroup=""), {}, False, id="without-a-group"),
        pytest.param(replace(POD, tree=Tree.OURS), {}, False, id="a-tree-of-ours"),
        pytest.param(replace(POD, qos=Qos.LS, kube_qos=KubeQos.BURSTABLE), {}, False, id="online"),
    ],
)
def test_what_is_given_back_when_a_pod_ends(pod: Pod, policy: dict[str, Any], given_back: bool) -> None:
    found = answer(PodEvent(Hook.POST_STOP_POD_SANDBOX, pod, cgroup=pod.cgroup), context(**policy))
    assert found.decisions == ()
    assert [(d.key, d.value) for d in found.ahead] == [((GROUP, Knob.CPU_IDLE), RESTORE)] * given_back


def test_only_the_end_of_the_whole_pod_counts() -> None:
    for hook in set(Hook) - {Hook.POST_STOP_POD_SANDBOX}:
        assert answer(PodEvent(hook, POD, cgroup=GROUP), context()).ahead == ()
