"""The agent as a real containerd's NRI plugin: values before the first instruction, and no fault of ours is a pod's.

KOORDLET_CHURN_S=300 makes the churn as long as the issue asks; by default it is short.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.labs.runtime import guard
from tests.labs.runtime.agent import Agent, batch_pod, lsr_pod, values, wait_for
from tests.labs.runtime.lab import Lab
from tests.labs.runtime.pods import Container, Pod

pytestmark = [
    pytest.mark.lab_runtime,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(guard.CGROUPS in guard.hierarchies(), reason="the containers' script reads v1 files"),
]

CHURN_S = float(os.environ.get("KOORDLET_CHURN_S", "25"))
RIGHT_WITHIN_S = 1.0
"""What is promised of an agent that is back; 0.05 s as measured."""
GIB = str(1 << 30)
ASKED = {"cpu_shares": 1024, "cpu_quota": 100_000, "cpu_period": 100_000}
LSR = {"cpuset": "1", "quota": "-1"}
BATCH = {"quota": "200000", "shares": "1024", "memory": GIB}

# What the container's first instruction sees: its own cgroup and its pod's, by the hierarchies of the machine.
SCRIPT = """
p=$(busybox sed -n 's/^[0-9]*:cpuset://p' /proc/self/cgroup); u=${p%/*}; c=/host/cpu
echo cpuset=$(cat /host/cpuset$p/cpuset.cpus) quota=$(cat $c$p/cpu.cfs_quota_us) shares=$(cat $c$p/cpu.shares) \\
 memory=$(cat /host/memory$p/memory.limit_in_bytes) pod_quota=$(cat $c$u/cpu.cfs_quota_us) \\
 pod_shares=$(cat $c$u/cpu.shares) pod_idle=$(cat $c$u/cpu.idle)
exec sleep 2147483647
"""
HOST = [{"container_path": "/host", "host_path": "/sys/fs/cgroup", "readonly": True}]


@pytest.fixture
def agent(runtime: Lab) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def make(*more: str) -> Agent:
        made.append(Agent(runtime, *more))
        return made[-1].start()

    yield make
    for found in made:
        found.close()


def first_words(pod: Pod, **resources: int) -> dict[str, str]:
    """What a new container's first instruction printed."""
    command = ("/bin/busybox", "sh", "-c", SCRIPT)
    pod.container(command=command, resources=resources, mounts=HOST)
    path = pod.lab.work / "logs" / pod.name / "main.log"
    wait_for(lambda: path.exists() and "pod_idle=" in path.read_text(), "the container's first words")
    line = path.read_text().splitlines()[0].split(" ", 3)[3]
    return dict(word.split("=", 1) for word in line.split())


def has(container: Container, wanted: dict[str, str]) -> bool:
    return values(container).items() >= wanted.items()


def test_values_are_there_before_the_first_instruction(runtime: Lab, agent: Callable[..., Agent]) -> None:
    agent("-idle-on-be-pods")
    lsr = first_words(lsr_pod(runtime, "lsr"), **ASKED)
    assert lsr.items() >= LSR.items()
    batch = first_words(batch_pod(runtime, "batch"), cpu_shares=2)
    assert batch.items() >= BATCH.items()
    assert batch["pod_idle"] == "1"
    plain = first_words(runtime.pod("plain", "burstable"), **ASKED)
    assert (plain["shares"], plain["quota"]) == ("1024", "100000")


def test_a_batch_pods_own_values_are_there_as_well(runtime: Lab, agent: Callable[..., Agent]) -> None:
    agent()
    words = first_words(batch_pod(runtime, "weighted"), cpu_shares=2)
    assert (words["pod_quota"], words["pod_shares"], words["pod_idle"]) == ("200000", "1024", "0")


def test_an_update_does_not_take_a_pinned_container_its_cpus(runtime: Lab, agent: Callable[..., Agent]) -> None:
    """koordinator #3129: a kubelet that resizes, or whose CPU manager pins."""
    agent()
    container = lsr_pod(runtime, "lsr").container(resources=ASKED)
    container.update(cpu_quota=50_000, cpu_period=100_000, cpuset_cpus="0")
    assert has(container, LSR)


def test_a_pod_from_before_the_agent_is_put_right(runtime: Lab, agent: Callable[..., Agent]) -> None:
    lsr = lsr_pod(runtime, "lsr").container(resources=ASKED)
    batch = batch_pod(runtime, "batch").container(resources={"cpu_shares": 2})
    assert not has(lsr, LSR)
    agent()
    wait_for(lambda: has(lsr, LSR) and has(batch, BATCH), "values of pods that were there before")


def test_what_travelled_in_replies_is_given_back_too(runtime: Lab, agent: Callable[..., Agent]) -> None:
    """As what containerd had been asked for; what nobody asked for is a new group's."""
    found = agent()
    plain = runtime.pod("plain", "burstable").container(resources=ASKED)
    lsr = lsr_pod(runtime, "lsr").container(resources=ASKED)
    batch = batch_pod(runtime, "batch").container(resources={"cpu_shares": 2})
    assert has(lsr, LSR)
    assert has(batch, BATCH)
    journal = found.folder / "state/journal"
    wait_for(lambda: journal.read_text().count("in the runtime's reply") >= 4, "the agent to have seen them")
    found.close()
    assert has(lsr, {"quota": "100000", "cpuset": values(plain)["cpuset"]})
    assert has(
        batch, {"quota": "-1", "shares": "2"}
    )  # not the memory limit: NRI limits swap along, which v1 holds us to
    assert "undo.failed" not in found.log.read_text()


def test_a_pod_to_be_evicted_is_stopped_by_the_runtime(
    runtime: Lab, agent: Callable[..., Agent], tmp_path: Path
) -> None:
    """No API server here: `--evict-by=cri`. Any use of memory is too much."""
    threshold = {"enable": True, "memoryEvictThresholdPercent": 1, "memoryEvictLowerPercent": 0}
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"resourceUsedThresholdWithBE": threshold}))
    online = runtime.pod("online", "burstable").container()
    batch = batch_pod(runtime, "batch").container()
    words = ("--evict-by=cri", f"--cri-socket={runtime.cri_socket}", f"--policy={policy}")
    found = agent("--feature-gates=BEMemoryEvict=true", *words)
    wait_for(lambda: batch.state == "CONTAINER_EXITED", "the runtime's stop")
    wait_for(lambda: '"result": "evicted"' in found.log.read_text(), "the agent's word")
    assert online.state == "CONTAINER_RUNNING"


def test_a_restarted_containerd_is_found_again(runtime: Lab, agent: Callable[..., Agent]) -> None:
    found = agent()
    for number, how in enumerate((signal.SIGTERM, signal.SIGKILL)):
        runtime.kill(how)
        runtime.launch()
        at_once = lsr_pod(runtime, f"once{number}").container(resources=ASKED)
        found.ready(number + 2)
        wait_for(lambda c=at_once: has(c, LSR), "values of a pod made at once")  # type: ignore[misc]
        later = lsr_pod(runtime, f"later{number}").container(resources=ASKED)
        assert has(later, LSR)


def test_a_stopped_agent_fails_no_pod_and_makes_up_for_it(runtime: Lab, agent: Callable[..., Agent]) -> None:
    found = agent()
    found.signal(signal.SIGSTOP)
    missed = lsr_pod(runtime, "missed").container(resources=ASKED)
    assert missed.state == "CONTAINER_RUNNING"
    assert not has(missed, LSR)
    found.signal(signal.SIGCONT)
    found.ready(2)
    wait_for(lambda: has(missed, LSR), "values of the pod that it missed")
    assert has(lsr_pod(runtime, "next").container(resources=ASKED), LSR)


def test_a_plugin_that_containerd_launches(runtime: Lab) -> None:
    """From its plugin directory, over descriptor 3, without an environment."""
    agent = Agent(runtime, "-enable-nri-runtime-hook")
    words = [word for word in agent.words if "nri-socket-path" not in word]
    script = runtime.work / "nri/plugins/10-koordlet"
    script.parent.mkdir()
    line = " ".join(f"'{word}'" for word in (*words, f"-var-run-root-dir={agent.folder}"))
    script.write_text(f"#!/bin/sh\nexport PYTHONPATH='{agent_root()}'\nexec {line} >>'{agent.log}' 2>&1\n")
    script.chmod(0o755)
    try:
        runtime.kill(signal.SIGTERM)
        runtime.launch()
        wait_for(lambda: agent.readies == 1, "the launched plugin")
        assert '"plugin": "10-koordlet"' in agent.log.read_text()
        assert has(lsr_pod(runtime, "launched").container(resources=ASKED), LSR)
    finally:
        script.unlink()
        runtime.kill(signal.SIGKILL)
        runtime.launch()
        # Its runtime is gone, and without an external socket nobody would ever ask it again.
        wait_for(lambda: '"event": "stopped"' in agent.log.read_text(), "the launched plugin's end")


def agent_root() -> Path:
    return Path(__file__).parents[3]


class Churn:
    """Pods that come and go while agent and containerd do too. worst_s: longest time from the agent's return until
    every pod was right."""

    def __init__(self, lab: Lab, agent: Agent, seed: int) -> None:
        self.lab, self.agent, self.random = lab, agent, random.Random(seed)
        self.alive: list[tuple[Pod, Container, dict[str, str]]] = []
        self.made = self.restarts = self.kills = self.stops = 0
        self.worst_s = 0.0

    def create(self) -> None:
        number, self.made = self.made, self.made + 1
        if number % 2:
            pod, resources, wanted = batch_pod(self.lab, f"p{number}"), {"cpu_shares": 2}, BATCH
        else:
            pod, resources, wanted = lsr_pod(self.lab, f"p{number}"), ASKED, LSR
        container = pod.container(resources=resources)
        assert container.state == "CONTAINER_RUNNING"
        self.alive.append((pod, container, wanted))
        if len(self.alive) > 4:
            oldest = self.alive.pop(0)[0]
            oldest.remove()
            self.lab.pods.remove(oldest)

    def strike(self) -> None:
        """One blow while pods are being made; then the agent is back and all is put right."""
        count = self.agent.readies
        blow = self.random.choice(["kill", "stop", "containerd", "containerd"])
        back: Callable[[], object] = lambda: None  # noqa: E731
        if blow == "kill":
            self.kills += 1
            self.agent.kill()
            back = lambda: self.agent.start(wait=False)  # noqa: E731
        elif blow == "stop":
            self.stops += 1
            self.agent.signal(signal.SIGSTOP)
            back = lambda: self.agent.signal(signal.SIGCONT)  # noqa: E731
        else:
            self.restarts += 1
            self.lab.kill(self.random.choice([signal.SIGTERM, signal.SIGKILL]))
            self.lab.launch()
        timer = threading.Timer(self.random.uniform(0.0, 1.5), back)
        timer.start()
        for _ in range(self.random.randint(1, 3)):
            self.create()
        timer.join()
        if blow == "stop" and self.agent.readies == count:
            time.sleep(0.2)  # it may have been let go before anybody asked it; then it was never dropped
            count -= self.agent.readies == count
        self.agent.ready(count + 1)
        took_s = wait_for(lambda: all(has(c, w) for _, c, w in self.alive), "values of all pods")
        self.worst_s = max(self.worst_s, took_s)


def test_churn_with_agent_and_containerd_coming_and_going(runtime: Lab, agent: Callable[..., Agent]) -> None:
    seed = int(os.environ.get("KOORDLET_CHURN_SEED", "7"))
    churn = Churn(runtime, agent(), seed)
    until_s = time.monotonic() + CHURN_S
    while time.monotonic() < until_s:
        for _ in range(2):
            churn.create()
        churn.strike()
    blows = f"{churn.kills} kills and {churn.stops} stops of the agent, {churn.restarts} restarts of containerd"
    print(f"\nchurn: {churn.made} pods, {blows}; all right within {churn.worst_s:.2f} s of its return")
    assert churn.worst_s < RIGHT_WITHIN_S
