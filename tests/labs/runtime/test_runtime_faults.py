"""A plugin that is slow, stopped, dead or wrong, and a containerd that restarts: what becomes of the pod.

None of these asks how long something took; that a plugin is dropped after 2 s shows in what it did not change.
"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.labs.runtime.cri import CriError
from tests.labs.runtime.lab import Lab
from tests.labs.runtime.plugins import cpu

pytestmark = [pytest.mark.lab_runtime, pytest.mark.timeout(1800)]

ASKED, WANTED = ("204", "8", "28"), ("777", "30", "80")  # shares on v1, weights on v2 by runc's two formulas
ADJUST = cpu(shares=777)


def shares_of_new_container(runtime: Lab, name: str) -> str:
    container = runtime.pod(name).container(resources={"cpu_shares": 204})
    assert container.state == "CONTAINER_RUNNING"
    return container.read("cpu.shares", "cpu.weight")


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        pytest.param({"sleep_ms": 1000}, WANTED, id="slow-by-1-s-is-waited-for"),
        pytest.param({"sleep_ms": 3000}, ASKED, id="slower-than-2-s-is-dropped"),
        pytest.param({"die": True}, ASKED, id="dies-when-asked"),
    ],
)
def test_the_pod_goes_on(runtime: Lab, fault: dict[str, Any], outcome: tuple[str, ...]) -> None:
    plugin = runtime.plugin()
    plugin.rules(CreateContainer=ADJUST | fault)
    assert shares_of_new_container(runtime, "faulty") in outcome
    plugin.wait("CreateContainer")
    if outcome is ASKED:
        # It is not asked again; the next pod is as if it had never been.
        plugin.wait("Died" if "die" in fault else "Closed")
        shares_of_new_container(runtime, "next")
        assert plugin.names("next") == []


def test_a_stopped_plugin_is_dropped(runtime: Lab) -> None:
    plugin = runtime.plugin()
    plugin.rules(CreateContainer=ADJUST)
    plugin.freeze()
    assert shares_of_new_container(runtime, "frozen") in ASKED
    plugin.process.send_signal(signal.SIGCONT)
    plugin.wait("Closed")
    assert "CreateContainer" not in plugin.names()


def test_a_killed_plugin_is_not_missed(runtime: Lab) -> None:
    plugin = runtime.plugin()
    plugin.rules(CreateContainer=ADJUST)
    plugin.close()
    assert shares_of_new_container(runtime, "killed") in ASKED


def test_an_error_fails_the_container(runtime: Lab) -> None:
    plugin = runtime.plugin()
    plugin.rules(CreateContainer={"error": "no room for this one"})
    pod = runtime.pod("refused")
    with pytest.raises(CriError, match="no room for this one"):
        pod.container()
    plugin.rules(CreateContainer=ADJUST)
    assert pod.container("again").read("cpu.shares", "cpu.weight") in WANTED


def test_an_error_at_run_fails_the_pod(runtime: Lab) -> None:
    runtime.plugin().rules(RunPodSandbox={"error": "no pods today"})
    with pytest.raises(CriError, match="no pods today"):
        runtime.pod("refused")


def test_one_plugins_fault_is_not_anothers(runtime: Lab) -> None:
    slow, sound = runtime.plugin("slow", "10"), runtime.plugin("sound", "20")
    slow.rules(CreateContainer={"sleep_ms": 3000})
    sound.rules(CreateContainer=ADJUST)
    assert shares_of_new_container(runtime, "mixed") in WANTED


def test_too_slow_to_synchronize_is_dropped(runtime: Lab) -> None:
    plugin = runtime.plugin(rules={"Synchronize": {"sleep_ms": 4000}, "CreateContainer": ADJUST})
    assert shares_of_new_container(runtime, "early") in ASKED
    plugin.wait("Closed")


def test_a_dropped_plugin_may_come_back(runtime: Lab) -> None:
    plugin = runtime.plugin(retry_ms=100)
    plugin.rules(CreateContainer=ADJUST | {"sleep_ms": 3000})
    assert shares_of_new_container(runtime, "first") in ASKED
    plugin.rules(CreateContainer=ADJUST)
    told = plugin.wait("Synchronize", 2)
    assert {p["name"] for p in told["pods"]} == {"first"}
    assert shares_of_new_container(runtime, "second") in WANTED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_after_a_restart_the_plugin_is_told_what_is_there(runtime: Lab, number: signal.Signals) -> None:
    plugin = runtime.plugin(retry_ms=100)
    container = runtime.pod("before").container()
    runtime.kill(number)
    runtime.launch()
    told = plugin.wait("Synchronize", 2)
    assert [c["id"] for c in told["containers"]] == [container.id]
    plugin.rules(CreateContainer=ADJUST)
    assert shares_of_new_container(runtime, "after") in WANTED


def test_a_value_that_the_kernel_refuses_fails_the_start(runtime: Lab) -> None:
    wrong = {"adjust": {"linux": {"resources": {"unified": {"memory.nonsense": "1"}}}}}
    runtime.plugin().rules(CreateContainer=wrong)
    container = runtime.pod("wrong").container(start=False)
    with pytest.raises(CriError):
        container.start()
