"""Reclaim on a thread of its own: never waits, one request per group, kernels that refuse an argument."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from koordlet.act.reclaim import Reclaimer
from koordlet.kernel.host import CgroupVersion
from koordlet.model.audit import AuditRecord
from koordlet.model.effect import EffectReport
from koordlet.model.reclaim import Reclaim
from koordlet.model.why import stages
from tests.hosts.tree import HostTree


class Kernel:
    """memory.reclaim that lowers memory.current; holds back while `gate` is closed."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.written: list[tuple[str, str]] = []
        self.done = threading.Semaphore(0)
        self.error = 0
        self.old = False

    def __call__(self, path: Path, data: bytes) -> None:
        assert self.gate.wait(10)
        text = data.decode()
        try:
            if self.old and "swappiness" in text:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            self.written.append((path.parent.name, text))
            if self.error:
                raise OSError(self.error, os.strerror(self.error))
            current = path.with_name("memory.current")
            current.write_text(f"{max(int(current.read_text()) - int(text.split()[0]), 0)}\n")
        finally:
            if not (self.old and "swappiness" in text):
                self.done.release()


class Room:
    def __init__(self, tmp_path: Path, version: CgroupVersion = CgroupVersion.V2, *, observe: bool = False) -> None:
        self.tree = HostTree(tmp_path, version)
        for group in ("a", "b"):
            self.tree.cgroup(group, {"memory.current": "1000000\n"})
        self.kernel, self.audit = Kernel(), list[AuditRecord]()
        self.reclaimer = Reclaimer(self.tree.host, self.audit.append, observe=observe, write=self.kernel)

    def apply(self, *effects: Reclaim) -> EffectReport:
        return self.reclaimer.apply(effects, 0.0)

    def settled(self, *effects: Reclaim) -> EffectReport:
        """The report that has the result of what the kernel finished."""
        assert self.kernel.done.acquire(timeout=10)
        self.reclaimer.restore_all(0.0, "test")  # waits for the thread
        return self.apply(*effects)


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def wish(target: str, amount: int = 4096, file_only: bool = False) -> Reclaim:
    return Reclaim(target, stages(used_bytes=1), "memory_qos", amount, file_only)


def test_the_kernel_is_asked_and_the_result_told(room: Room) -> None:
    room.apply(wish("a", 300_000))
    report = room.settled()
    assert (report.done, report.failed, report.errors) == (1, 0, ())
    assert room.kernel.written == [("a", "300000")]
    assert "freed 300000 bytes" in room.audit[0].message
    room.reclaimer.restore_all(0.0, "test")


def test_one_request_per_group_while_the_kernel_works(room: Room) -> None:
    room.kernel.gate.clear()
    for _ in range(20):
        room.apply(wish("a"))
    room.kernel.gate.set()
    room.settled()
    assert room.kernel.written == [("a", "4096")]


def test_partial_reclaim_is_no_failure(room: Room) -> None:
    room.kernel.error = errno.EAGAIN
    room.apply(wish("a"))
    report = room.settled()
    assert (report.done, report.failed) == (1, 0)
    assert "freed 0 bytes" in room.audit[0].message


def test_a_refusal_is_told_with_file_and_reason(room: Room) -> None:
    room.kernel.error = errno.EPERM
    room.apply(wish("a"))
    report = room.settled()
    assert report.errors == ("a/memory.reclaim: Operation not permitted",)
    assert room.audit[0].mode == "refused"


@pytest.mark.parametrize(("old", "texts"), [(False, ["4096 swappiness=0"] * 2), (True, ["4096", "4096"])])
def test_file_pages_only_as_far_as_the_kernel_can_be_told_so(room: Room, old: bool, texts: list[str]) -> None:
    room.kernel.old = old
    for group in ("a", "b"):
        room.apply(wish(group, file_only=True))
        room.settled()
    assert [text for _, text in room.kernel.written] == texts


def test_observing_writes_nothing(tmp_path: Path) -> None:
    room = Room(tmp_path, observe=True)
    for _ in range(3):
        report = room.apply(wish("a"))
    assert report.state == {"a": "observed"}
    assert [record.mode for record in room.audit] == ["observe"]
    assert room.kernel.written == []


@pytest.mark.parametrize("target", ["", "..", "/"])
def test_the_root_is_never_reclaimed(room: Room, target: str) -> None:
    room.apply(wish(target))
    room.kernel.done.release()
    assert "not written" in room.settled().errors[0]
    assert room.kernel.written == []
