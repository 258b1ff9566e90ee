"""NRI as containerd does it: which events come in which order with which contents, and what an answer changes."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.labs.runtime.cri import CriError
from tests.labs.runtime.lab import Lab
from tests.labs.runtime.plugins import cpu

pytestmark = [pytest.mark.lab_runtime, pytest.mark.timeout(1800)]

SHARES = {204: ("204", "8", "28"), 512: ("512", "20", "59"), 777: ("777", "30", "80")}  # v1; v2 by runc's two formulas
LIFE = [
    "RunPodSandbox",
    "CreateContainer",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "UpdateContainer",
    "PostUpdateContainer",
    "StopContainer",
    "RemoveContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
]


def test_a_plugin_is_told_of_a_pods_whole_life_in_order(runtime: Lab) -> None:
    plugin = runtime.plugin()
    pod = runtime.pod("life", "burstable", labels={"koordinator.sh/qosClass": "LS"}, annotations={"a": "b"})
    container = pod.container(resources={"cpu_shares": 512})
    container.update(cpu_shares=204)
    container.stop()
    container.remove()
    pod.remove()
    assert plugin.names()[:2] == ["Configure", "Synchronize"]
    assert [name for name in plugin.names("life") if name in LIFE] == LIFE


def test_events_carry_what_an_agent_needs(runtime: Lab) -> None:
    plugin = runtime.plugin()
    pod = runtime.pod("facts", "burstable", labels={"koordinator.sh/qosClass": "LS"}, annotations={"a": "b"})
    container = pod.container("app", resources={"cpu_shares": 512})
    configured = plugin.of("Configure")[0]
    assert (configured["runtime"], configured["version"].lstrip("v")[:4]) == ("containerd", "2.4.")
    told = plugin.of("RunPodSandbox")[0]["pod"]
    assert (told["id"], told["uid"], told["namespace"]) == (pod.id, pod.uid, "default")
    assert told["labels"]["koordinator.sh/qosClass"] == "LS"
    assert told["annotations"]["a"] == "b"
    assert told["linux"]["cgroupParent"] == pod.cgroup
    os.kill(told["pid"], 0)
    created = plugin.of("CreateContainer")[0]["container"]
    assert (created["name"], created["id"], created["podSandboxId"]) == ("app", container.id, pod.id)
    assert created["linux"]["cgroupsPath"] == container.cgroup
    assert created["linux"]["resources"]["cpu"]["shares"]["value"] == "512"
    assert "pid" not in created
    assert plugin.of("StartContainer")[0]["container"]["pid"] == container.pid


@pytest.mark.parametrize("shares", SHARES)
def test_an_adjusted_container_has_the_plugins_shares(runtime: Lab, shares: int) -> None:
    runtime.plugin().rules(CreateContainer=cpu(shares=shares))
    container = runtime.pod("adjusted").container(resources={"cpu_shares": 100})
    assert container.read("cpu.shares", "cpu.weight") in SHARES[shares]


def test_two_plugins_at_once_are_asked_in_order_and_both_obeyed(runtime: Lab) -> None:
    late, early = runtime.plugin("late", "90"), runtime.plugin("early", "10")
    early.rules(CreateContainer=cpu(shares=777))
    late.rules(CreateContainer=cpu(quota=30_000, period=100_000))
    container = runtime.pod("both").container()
    assert container.read("cpu.shares", "cpu.weight") in SHARES[777]
    assert container.read("cpu.cfs_quota_us", "cpu.max") in ("30000", "30000 100000")
    # The later one sees what the earlier one did.
    seen = late.of("CreateContainer")[0]["container"]["linux"]["resources"]["cpu"]["shares"]
    assert seen == {"value": "777"}


def test_two_plugins_that_set_the_same_fail_the_container(runtime: Lab) -> None:
    for index in ("10", "20"):
        runtime.plugin("rival", index).rules(CreateContainer=cpu(shares=512))
    with pytest.raises(CriError, match="both tried to set"):
        runtime.pod("torn").container()


def test_an_answer_may_change_another_container(runtime: Lab) -> None:
    plugin = runtime.plugin()
    pod = runtime.pod("neighbours")
    first = pod.container("first", resources={"cpu_shares": 204})
    update: dict[str, Any] = {"containerId": first.id, "linux": {"resources": {"cpu": {"shares": {"value": 777}}}}}
    plugin.rules(CreateContainer={"updates": [update]})
    pod.container("second")
    assert first.read("cpu.shares", "cpu.weight") in SHARES[777]


def test_a_late_plugin_is_told_what_is_there_and_may_change_it(runtime: Lab) -> None:
    container = runtime.pod("earlier").container(resources={"cpu_shares": 204})
    told = runtime.plugin("first").of("Synchronize")[0]
    assert [c["id"] for c in told["containers"]] == [container.id]
    assert [p["name"] for p in told["pods"]] == ["earlier"]
    assert told["containers"][0]["pid"] == container.pid
    update = {"containerId": container.id, "linux": {"resources": {"cpu": {"shares": {"value": 512}}}}}
    second = runtime.plugin("second", "20", rules={"Synchronize": {"updates": [update]}})
    runtime.pod("later")  # NRI's events come one by one: the answer before has been dealt with
    assert second.names("later") == ["RunPodSandbox"]
    assert container.read("cpu.shares", "cpu.weight") in SHARES[512]


def test_a_plugin_that_is_not_called_is_noticed(runtime: Lab) -> None:
    """The lab's own check: without a plugin the container keeps what CRI asked for."""
    plugin = runtime.plugin()
    plugin.rules(CreateContainer=cpu(shares=777))
    plugin.close()
    container = runtime.pod("alone").container(resources={"cpu_shares": 204})
    assert plugin.of("CreateContainer") == []
    assert container.read("cpu.shares", "cpu.weight") in SHARES[204]
