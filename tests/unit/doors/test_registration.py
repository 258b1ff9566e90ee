"""`koordlet.json` as koord-runtime-proxy needs it: never empty, never half, and left alone when nothing changed."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from koordlet.config.flags import parse
from koordlet.doors.registration import Registration

ENDPOINT = "/var/run/koordlet/koordlet.sock"
STAGES = ("PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources")
ENV = {"NODE_NAME": "n"}


def made(folder: Path, stages: tuple[str, ...] = STAGES, policy: str = "Ignore") -> Registration:
    return Registration(folder / "hookserver.d", ENDPOINT, policy, stages)


def test_the_file_of_the_default_gates(tmp_path: Path) -> None:
    flags = parse([], ENV)
    registration = made(tmp_path, flags.hooks.proxy_stages(flags.gates.effective), flags.hooks.failure_policy)
    registration.put()
    found = json.loads(registration.path.read_text())
    assert set(found.pop("runtime-hooks")) == set(STAGES)
    assert found == {"remote-endpoint": ENDPOINT, "failure-policy": "Ignore"}
    assert os.listdir(registration.path.parent) == ["koordlet.json"]
    assert registration.path.stat().st_mode & 0o777 == 0o644


def test_w50_a_disabled_stage_is_not_named() -> None:
    flags = parse(["-runtime-hooks-disable-stages=PreCreateContainer"], ENV)
    stages = flags.hooks.proxy_stages(flags.gates.effective)
    assert set(stages) == {"PreRunPodSandbox", "PreUpdateContainerResources"}


def test_without_any_hook_there_is_no_stage() -> None:
    flags = parse(["-feature-gates=AllBeta=false"], ENV)
    assert flags.hooks.proxy_stages(flags.gates.effective) == ()


def test_an_equal_file_is_left_alone(tmp_path: Path) -> None:
    registration = made(tmp_path)
    registration.put()
    before = registration.path.stat()
    made(tmp_path).put()
    after = registration.path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_another_content_is_written_in_place(tmp_path: Path) -> None:
    made(tmp_path).put()
    before = made(tmp_path).path.stat().st_ino
    for stages in (STAGES[:1], STAGES):  # shorter, then longer
        registration = made(tmp_path, stages)
        registration.put()
        assert registration.path.stat().st_ino == before
        assert sorted(json.loads(registration.path.read_text())["runtime-hooks"]) == sorted(stages)


def test_an_empty_file_is_replaced_whole(tmp_path: Path) -> None:
    registration = made(tmp_path)
    registration.path.parent.mkdir()
    registration.path.write_text("")
    registration.put()
    assert json.loads(registration.path.read_text())["failure-policy"] == "Ignore"


def test_a_reader_never_sees_an_empty_file(tmp_path: Path) -> None:
    """What it reads parses, or keeps it at what it knew; empty would be fatal to the proxy."""
    registrations = [made(tmp_path, STAGES[:n]) for n in (1, 3, 2)]
    registrations[0].put()
    done, empty = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            if not registrations[0].path.read_bytes():
                empty.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(300):
        registrations[number % 3].put()
    done.set()
    reader.join()
    assert empty == []


def test_only_our_own_file_is_removed(tmp_path: Path) -> None:
    registration = made(tmp_path)
    registration.remove()
    registration.put()
    made(tmp_path, STAGES[:1]).remove()
    assert registration.path.exists()
    registration.remove()
    assert not registration.path.exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    registration = made(tmp_path)
    registration.path.parent.mkdir()
    (tmp_path / "victim").write_text("precious")
    registration.path.symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        registration.put()
    assert (tmp_path / "victim").read_text() == "precious"
