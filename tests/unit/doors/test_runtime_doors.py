"""The wiring of the doors: flags in, the right doors open, answers from the last view and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.config.errors import UsageError
from koordlet.config.flags import parse
from koordlet.doors.http import DoorError
from koordlet.inputs import KubepodsInput
from koordlet.model.status import Snapshot
from koordlet.model.view import Policy
from koordlet.wiring.runtime import RuntimeDoors
from tests.hosts.tree import v1_two_sockets_ht
from tests.unit.doors.nri_runtime import Listener, container, pod
from tests.unit.doors.test_nri_door import wait_for

ENV = {"NODE_NAME": "n"}


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Callable[..., RuntimeDoors]]:
    made: list[RuntimeDoors] = []
    tree = v1_two_sockets_ht(tmp_path / "node")

    def make(*argv: str, snapshot: Callable[[], Snapshot | None] = lambda: None, **more: Any) -> RuntimeDoors:
        words = [f"-var-run-root-dir={tmp_path}", f"--run-dir={tmp_path}/run", *argv]
        flags = parse(words, ENV)
        made.append(
            RuntimeDoors(
                flags, KubepodsInput(flags, tree.host), snapshot, Policy, lambda *timed: None, **{"env": {}, **more}
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
