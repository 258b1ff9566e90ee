"""The wiring of the doors: flags in, the right doors open, answers from the last view and from nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from koordlet.config.errors import UsageError
from koordlet.config.flags import parse
from koordlet.doors.http import DoorError
from koordlet.doors.runtime_hook import SERVICE
from koordlet.inputs import KubepodsInput
from koordlet.model.status import ApplyReport, Snapshot, TickStats
from koordlet.model.view import NodeInfo, NodeView, Policy
from koordlet.wire import hook_pb2
from koordlet.wiring.runtime import RuntimeDoors
from tests.hosts.tree import v1_two_sockets_ht
from tests.unit.decide.build import flat
from tests.unit.doors.nri_runtime import Listener, container, pod
from tests.unit.doors.test_nri_door import wait_for

ENV = {"NODE_NAME": "n"}


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Callable[..., RuntimeDoors]]:
    made: list[RuntimeDoors] = []
    tree = v1_two_sockets_ht(tmp_path / "node")

    def make(
        *argv: str,
        snapshot: Callable[[], Snapshot | None] = lambda: None,
        policy: Callable[[], Policy] = Policy,
        **more: Any,
    ) -> RuntimeDoors:
        words = [f"-var-run-root-dir={tmp_path}", f"--run-dir={tmp_path}/run", *argv]
        flags = parse(words, ENV)
        made.append(
            RuntimeDoors(
                flags, KubepodsInput(flags, tree.host), snapshot, policy, lambda *timed: None, **{"env": {}, **more}
            )
        )
        return made[-1]

    yield make
    for found in made:
        found.close()
        found.inbox.close()


def test_before_the_first_round_a_runtime_is_answered_unchanged(
    doors: Callable[..., RuntimeDoors], tmp_path: Path
) -> None:
    runtimes = Listener(tmp_path / "nri/nri.sock")
    found = doors()
    found.start()
    runtime = runtimes.plugin()
    runtime.handshake([pod()])
    wait_for(lambda: found.hooked)
    assert not runtime.create(pod(labels={"koordinator.sh/qosClass": "LSR"}), container()).HasField("adjust")
    assert [p.uid for p in found.poll(1.0).pods] == ["u1"]
    assert found.figures()["nri_connected"] == 1
    found.close()
    assert not found.hooked
    runtimes.close()


ASKING = ("open", "os.listdir", "os.scandir", "socket.connect", "subprocess.Popen", "os.posix_spawn")


@pytest.fixture(scope="module")
def asked() -> Iterator[list[str]]:
    """What the interpreter opens or connects to while the list holds a first "on"."""
    seen: list[str] = []
    going = [True]  # a hook cannot be taken out again
    sys.addaudithook(
        lambda event, args: seen.append(f"{event} {args}") if going[0] and seen and event in ASKING else None
    )
    yield seen
    going[0] = False


def test_an_answer_opens_nothing_and_asks_nobody(
    doors: Callable[..., RuntimeDoors], tmp_path: Path, asked: list[str]
) -> None:
    """Handlers answer from memory: once a door is warm, no file, no peer, no process."""
    runtimes = Listener(tmp_path / "nri/nri.sock")
    (tmp_path / "proxy").mkdir()
    node = NodeInfo(topology=flat(4), kubelet_policy="none")
    seen = Snapshot(NodeView(1.0, node=node), {}, ApplyReport(), TickStats(), 0.0)
    found = doors(
        f"-runtime-hooks-addr={tmp_path}/proxy/k.sock",
        f"-runtime-hooks-config-path={tmp_path}/hookserver.d",
        snapshot=lambda: seen,
        policy=lambda: Policy(gates=frozenset({"CPUSetAllocator", "BatchResource"})),
    )
    found.start()
    runtime = runtimes.plugin()
    runtime.handshake()
    channel = grpc.insecure_channel(f"unix:{tmp_path}/proxy/k.sock")
    call = channel.unary_unary(f"/{SERVICE}/PreCreateContainerHook")
    status = {"scheduling.koordinator.sh/resource-status": '{"cpuset": "2-3"}'}
    told = pod(labels={"koordinator.sh/qosClass": "LSR"}, annotations=status)
    request = hook_pb2.ContainerResourceHookRequest(
        pod_meta={"uid": "u1", "name": "web-0", "namespace": "shop"},
        container_meta={"name": "app"},
        pod_labels=told.labels,
        pod_annotations=status,
        pod_cgroup_parent="/kubepods/burstable/podu1",
    ).SerializeToString()
    call(request, wait_for_ready=True)
    runtime.create(told, container())
    asked.append("on")
    adjusted = runtime.create(told, container())
    replied = hook_pb2.ContainerResourceHookResponse.FromString(call(request))
    assert asked == ["on"]
    assert adjusted.adjust.linux.resources.cpu.cpus == replied.container_resources.cpuset_cpus == "2-3"
    channel.close()
    found.close()
    runtimes.close()


def test_without_a_proxys_directory_its_door_stays_shut(doors: Callable[..., RuntimeDoors], tmp_path: Path) -> None:
    found = doors(f"-runtime-hooks-addr={tmp_path}/nowhere/k.sock")
    found.start()
    assert not (tmp_path / "nowhere").exists()
    assert found.errors() == ()


def test_with_it_the_door_opens_and_registers(doors: Callable[..., RuntimeDoors], tmp_path: Path) -> None:
    (tmp_path / "proxy").mkdir()
    found = doors(
        f"-runtime-hooks-addr={tmp_path}/proxy/k.sock",
        f"-runtime-hooks-config-path={tmp_path}/hookserver.d",
        "-runtime-hooks-failure-policy=Fail",
        "-runtime-hooks-disable-stages=PreCreateContainer",
        "-enable-nri-runtime-hook=false",
    )
    found.start()
    told = json.loads((tmp_path / "hookserver.d/koordlet.json").read_text())
    assert told["failure-policy"] == "Fail"
    assert "PreCreateContainer" not in told["runtime-hooks"]
    assert "nri_connected" not in found.figures()
    found.close()
    assert not (tmp_path / "hookserver.d/koordlet.json").exists()


def test_the_commands_socket_is_not_the_proxys(doors: Callable[..., RuntimeDoors], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(DoorError, match="choose another"):
        doors(f"-runtime-hooks-addr={tmp_path}/run/agent.sock").start()


def test_a_half_launched_plugin_does_not_start(doors: Callable[..., RuntimeDoors]) -> None:
    with pytest.raises(DoorError, match="NRI_PLUGIN_SOCKET"):
        doors(env={"NRI_PLUGIN_SOCKET": "x"})


@pytest.mark.parametrize(
    "flag",
    [
        "-runtime-hooks-network=tcp",
        "-runtime-hooks-failure-policy=fail",
        "-runtime-hooks-plugin-failure-policy=no",
        "-runtime-hooks-disable-stages=PreFly",
        "-runtime-hooks-nri-plugin-index=1",
        "-runtime-hooks-nri-plugin-name=a b",
        f"-runtime-hooks-addr=/{'x' * 120}",
        "-runtime-hooks-nri-backoff-factor=0",
    ],
)
def test_flags_that_cannot_be(flag: str) -> None:
    with pytest.raises(UsageError, match=flag.partition("=")[0]):
        parse([flag], ENV)


def test_the_proxys_door_is_for_clusters() -> None:
    assert parse([], ENV).hooks.addr == "/host-var-run-koordlet/koordlet.sock"
    assert parse([], {}).hooks.addr == ""
    assert str(parse([], {}).hooks.nri_socket) == "/var/run/nri/nri.sock"
    assert parse(["-enable-nri-runtime-hook=false"], {}).hooks.nri_socket is None
