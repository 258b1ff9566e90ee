"""Worked examples of spec/hooks 7.2 for network QoS, from the NodeSLO's own keys to rates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from koordlet.act.terway import TerwayFiles
from koordlet.config.errors import PolicyError
from koordlet.config.nodeslo import decode
from koordlet.decide.podrules import PodContext, network, terway
from koordlet.kernel.net import BITS, ROOT, burst_bytes
from koordlet.model.pod import Pod, PodSet
from koordlet.model.podeffects import NetworkClass, TerwayFile
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.view import Policy
from tests.worked.test_podrules_worked import pod

OWN = "koordinator.sh/networkQOS"
GATES = frozenset({network.GATE, terway.GATE})


def context(total: str = "1G", net: str = "tc", gates: frozenset[str] = GATES, **classes: dict[str, Any]) -> PodContext:
    strategy: dict[str, Any] = {"policies": {"netQOSPolicy": net}}
    for name, block in classes.items():
        strategy[f"{name}Class"] = {"networkQOS": {"enable": True, **block}}
    spec = {"resourceQOSStrategy": strategy, "systemStrategy": {"totalNetworkBandwidth": total}}
    return PodContext(Policy(slo=decode(spec, host_app_dir=lambda *_: "x"), gates=gates))


def rates(ctx: PodContext) -> dict[str, tuple[int, int]]:
    effects, _ = network.node_classes(ctx)
    return {e.target: (e.rate_bps, e.ceil_bps) for e in effects if isinstance(e, NetworkClass)}


def test_w33_rates_of_the_classes() -> None:
    found = rates(context(ls={"egressRequest": 50}, be={"egressRequest": "200M"}))
    assert {name: rate // BITS for name, (rate, _) in found.items()} == {
        "root": 125_000_000,
        "system": 37_500_000,
        "ls": 62_500_000,
        "be": 25_000_000,
    }
    assert found["ls"][1] == found["ls"][0], "without a limit no more than the guarantee"
    assert rates(context(ls={"egressRequest": 50, "egressLimit": 80}))["ls"] == (500_000_000, 800_000_000)


def test_w34_bursts() -> None:
    assert [burst_bytes(rate) for rate in (125_000_000, 37_500_000, 0)] == [126_600, 39_100, 1600]


def test_w35_more_than_there_is() -> None:
    ctx = context(ls={"egressRequest": "800M"}, be={"egressRequest": "700M"})
    assert rates(ctx)["system"] == (10_000_000, 1_000_000_000)
    assert "less than 1 %" in network.node_classes(ctx)[1][0]


def test_w36_a_pods_limit_is_divided_once() -> None:
    about = pod(qos=Qos.LS, kube=KubeQos.BURSTABLE, annotations={OWN: {"egressLimit": "80M"}})
    found = network.pod_network(about, context())
    assert found is not None
    assert found.egress_bps is not None
    assert found.egress_bps // BITS == 10_000_000


def test_w37_handles() -> None:
    assert [ROOT | minor for minor in (2, 3, 4, 0x1A)] == [65538, 65539, 65540, 65562]


def test_w38_percentages_and_quantities_mean_the_same_to_terway() -> None:
    for request in (50, "500M"):
        lines = terway.node_text(context(net="terway-qos", ls={"egressRequest": request})).splitlines()
        assert lines[0] == "hw_tx_bps_max 125000000"
        assert lines[2] == "offline_l1_tx_bps_min 62500000"
        assert len(lines) == 10


def test_a_class_without_guarantee_keeps_a_little_and_may_use_all() -> None:
    found = rates(context(ls={"egressRequest": 50}))
    assert found["be"] == (10_000_000, 1_000_000_000), "a rate of 0 is refused by the kernel"


def test_without_a_bandwidth_no_class_is_shaped_and_that_is_said() -> None:
    effects, notes = network.node_classes(context("0", ls={"egressRequest": 50}))
    assert effects == ()
    assert "totalNetworkBandwidth" in notes[0]


def test_a_negative_bandwidth_is_refused() -> None:
    with pytest.raises(PolicyError, match="totalNetworkBandwidth"):
        context("-1G")


PARENTS = [
    (Qos.SYSTEM, "system"), (Qos.LSE, "ls"), (Qos.LSR, "ls"), (Qos.LS, "ls"), (Qos.BE, "be"), (None, None)
]  # fmt: skip


@pytest.mark.parametrize(("qos", "parent"), PARENTS)
def test_the_class_of_a_pod(qos: Qos | None, parent: str | None) -> None:
    found = network.pod_network(pod(qos=qos), context(ls={"egressRequest": 50}))
    assert (None if found is None else found.parent) == parent


def test_pods_on_the_hosts_network_and_ipv6_have_no_address_of_their_own() -> None:
    from dataclasses import replace

    about = replace(pod(qos=Qos.LS), ips=("10.0.0.1", "fd00::1"))
    ctx = context(ls={"egressRequest": 50})
    found, host = network.pod_network(about, ctx), network.pod_network(replace(about, host_network=True), ctx)
    assert found is not None
    assert host is not None
    assert found.ips == ("10.0.0.1",)
    assert host.ips == ()


def test_a_malformed_limit_leaves_the_class() -> None:
    about = pod(qos=Qos.LS, annotations={OWN: {"egressLimit": "much"}})
    assert about.settings.faults
    found = network.pod_network(about, context(ls={"egressRequest": 50}))
    assert found is not None
    assert found.egress_bps is None


@pytest.mark.parametrize("off", [{"net": "terway-qos"}, {"gates": frozenset()}])
def test_another_policy_or_no_gate_shapes_nothing(off: dict[str, Any]) -> None:
    ctx = context(ls={"egressRequest": 50}, **off)
    assert network.node_classes(ctx) == ((), ())
    assert network.pod_network(pod(qos=Qos.LS), ctx) is None


def wanted(*pods: Pod, net: str = "terway-qos") -> tuple[TerwayFile, ...]:
    return terway.files(PodSet(pods, 1, 0.0), context(net=net))  # type: ignore[return-value]


def test_terways_files(tmp_path: Path) -> None:
    directory = tmp_path / "terway/qos"
    applier = TerwayFiles(directory, (terway.NODE_FILE, terway.POD_FILE))
    about = pod(qos=Qos.BE, annotations={OWN: {"ingressLimit": "80M"}})
    assert applier.apply(wanted(about), 0.0).done == 2
    assert json.loads((directory / "pod.json").read_text()) == {
        "u1": {
            "podName": "p",
            "podNamespace": "default",
            "podUID": "u1",
            "prio": 2,
            "cgroupDir": "/sys/fs/cgroup/net_cls/kubepods/besteffort/podp",
            "qosConfig": {"ingressBandwidth": 10_000_000, "egressBandwidth": 0},
        }
    }
    assert directory.stat().st_mode & 0o777 == 0o755
    assert applier.apply(wanted(about), 1.0).done == 2, "the same report while nothing changed"
    assert applier.apply(wanted(about, net="tc"), 2.0).undone == 2
    assert list(directory.iterdir()) == []


def test_a_full_disk_is_told_and_tried_again(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    applier = TerwayFiles(blocked / "qos", (terway.NODE_FILE, terway.POD_FILE))
    assert applier.apply(wanted(pod()), 0.0).failed == 2
    blocked.unlink()
    assert applier.apply(wanted(pod()), 1.0).done == 2
