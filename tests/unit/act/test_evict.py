"""The applier of evictions: once per pod, back-off, identity, ways out. Real processes; the API server is played."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from koordlet.act.evict import Answer, EvictBy, Evictor
from koordlet.act.kill import kill
from koordlet.act.reap import Reaper, release
from koordlet.kernel.host import CgroupVersion
from koordlet.model.audit import AuditRecord
from koordlet.model.eviction import Evict, EvictState
from koordlet.model.pod import Tree
from koordlet.model.why import stages
from tests.hosts.tree import HostTree

WISH = Evict(
    target="uid-a",
    why=stages(used_bytes=1),
    owner="memory_evict",
    namespace="ns",
    name="a",
    cgroup="batch/a",
    tree=Tree.OURS,
    feature="BEMemoryEvict",
    release=(("memory", 5),),
)
POD = replace(WISH, tree=Tree.KUBELET, cgroup="kubepods/besteffort/poduid-a")


class Server:
    """An API server's answers: uid -> error text, "" to accept; None to say nothing yet."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.verdict: str | None = ""
        self.waiting: list[Answer] = []

    def ask(self, evict: Evict) -> None:
        self.asked.append(evict.target)
        if self.verdict is not None:
            self.waiting.append(Answer(evict.target, self.verdict))

    def answers(self) -> list[Answer]:
        found, self.waiting = self.waiting, []
        return found

    def tell(self, evict: Evict, reason: str, message: str) -> None:
        self.told.append((evict.name, reason))


class Room:
    def __init__(self, root: Path, server: Server | None = None, by: EvictBy = EvictBy.AUTO, observe: bool = False):
        self.tree = HostTree(root, CgroupVersion.V1)
        self.audit: list[AuditRecord] = []
        self.counts: list[tuple[str, str]] = []
        self.same = True
        self.evictor = Evictor(
            self.tree.host,
            self.audit.append,
            lambda evict, result: self.counts.append((evict.feature, result)),
            lambda evict: self.same,
            api=server,
            by=by,
            observe=observe,
        )

    def run(self, now_s: float, *wishes: Evict) -> EvictState | None:
        self.evictor.apply(wishes, now_s)
        found = self.evictor.book().get("uid-a")
        return None if found is None else found.state

    def put(self, cgroup: str, process: subprocess.Popen[bytes], really: str = "") -> None:
        """Make it a member of a copied cgroup; really: where the process itself says that it is."""
        directory = self.tree.host.dir("cpu", cgroup)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").write_text(f"{process.pid}\n")
        own = self.tree.host.proc_root / str(process.pid)
        own.mkdir(parents=True, exist_ok=True)
        (own / "cgroup").write_text(f"4:cpu,cpuacct:/{really or cgroup}\n0::/\n")

    def empty(self, cgroup: str) -> None:
        (self.tree.host.dir("cpu", cgroup) / "cgroup.procs").write_text("")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def test_a_declared_workload_is_killed_once_and_then_spared(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    room = Room(tmp_path)
    room.put("batch/a", process)
    assert room.run(100, WISH) is EvictState.ACCEPTED
    assert process.wait(10) == -9
    room.empty("batch/a")
    assert room.run(101, WISH) is EvictState.DONE
    assert room.evictor.book()["uid-a"].retry_at_s == 161
    for second in range(102, 150):
        room.run(second, WISH)
    assert room.counts == [("BEMemoryEvict", "evicted")]
    (record,) = room.audit
    assert (record.level, record.kind, record.reason, record.name) == (0, "pod", "BEMemoryEvict", "a")
    assert "trigger by koordlet feature BEMemoryEvict" in record.message


def test_another_workload_in_the_same_place_is_left_alone(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    room = Room(tmp_path)
    room.put("batch/a", process)
    room.same = False
    assert room.run(100, WISH) is EvictState.REFUSED
    assert process.poll() is None
    assert room.counts == [("BEMemoryEvict", "refused")]


def test_a_number_that_belongs_to_a_process_elsewhere_is_not_hit(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    room = Room(tmp_path)
    room.put("batch/a", process, really="online/web")
    assert kill(room.tree.host, "batch/a", lambda path, data: None).signalled == 0
    assert process.poll() is None


def test_memory_is_freed_of_dying_processes_alone(process: subprocess.Popen[bytes]) -> None:
    (pidfd,) = Reaper().open([process.pid])
    try:
        assert release(pidfd) in (errno.EINVAL, errno.ENOSYS)
        assert process.poll() is None
        process.kill()
        process.wait()
        assert release(pidfd) in (errno.ESRCH, errno.ENOSYS)
    finally:
        os.close(pidfd)


def test_what_was_opened_for_freeing_is_closed_again(process: subprocess.Popen[bytes]) -> None:
    reaper = Reaper()
    (pidfd,) = reaper.open([process.pid, 2**22 + 1])
    reaper.free([pidfd])
    deadline_s = time.monotonic() + 10
    while os.path.exists(f"/proc/self/fd/{pidfd}") and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/self/fd/{pidfd}")
    assert process.poll() is None


@pytest.mark.parametrize("target", ["", "/", "..", "a/../..", "a\0b"])
def test_the_root_and_paths_outside_are_never_killed(tmp_path: Path, target: str) -> None:
    room = Room(tmp_path)
    assert kill(room.tree.host, target, lambda path, data: None).error


def test_the_agent_does_not_kill_itself(tmp_path: Path) -> None:
    room = Room(tmp_path)
    directory = room.tree.host.dir("cpu", "batch/a")
    directory.mkdir(parents=True)
    (directory / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert "agent itself" in kill(room.tree.host, "batch/a", lambda path, data: None).error


def test_v2_kills_the_whole_group_by_one_write(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    tree = HostTree(tmp_path, CgroupVersion.V2)
    directory = tree.host.dir("cpu", "batch/a")
    directory.mkdir(parents=True)
    (directory / "cgroup.procs").write_text(f"{process.pid}\n")
    (directory / "cgroup.kill").write_text("")
    writes: list[tuple[Path, bytes]] = []
    found = kill(tree.host, "batch/a", lambda path, data: writes.append((path, data)))
    assert (found.signalled, writes) == (1, [(directory / "cgroup.kill", b"1")])
    assert process.poll() is None


def test_a_pod_is_asked_to_go_once(tmp_path: Path) -> None:
    server = Server()
    server.verdict = None
    room = Room(tmp_path, server)
    assert room.run(100, POD) is EvictState.ASKED
    server.waiting.append(Answer("uid-a"))
    for second in range(101, 400):
        assert room.run(second, POD) is EvictState.ACCEPTED
    assert (server.asked, server.told) == (["uid-a"], [("a", "evictPodSuccess")])
    assert room.run(400) is None


def test_a_disruption_budget_backs_off_and_forgets_nothing(tmp_path: Path) -> None:
    server = Server()
    server.verdict = "429: Cannot evict pod as it would violate the pod's disruption budget."
    room = Room(tmp_path, server)
    asked_at = []
    for second in range(100, 200):
        before = len(server.asked)
        room.run(second, POD)
        if len(server.asked) > before:
            asked_at.append(second - 100)
    assert asked_at == [0, 6, 17, 38, 79]  # 5, 10, 20, 40 s after each answer, which comes a round later
    assert {reason for _, reason in server.told} == {"evictPodFail"}
    server.verdict = ""
    assert [room.run(300, POD), room.run(301, POD)] == [EvictState.ASKED, EvictState.ACCEPTED]


def test_a_pod_that_is_gone_needs_no_event(tmp_path: Path) -> None:
    server = Server()
    server.verdict = None
    room = Room(tmp_path, server)
    room.run(100, POD)
    server.waiting.append(Answer("uid-a", "404: not found", gone=True))
    assert room.run(101, POD) is EvictState.ACCEPTED
    assert (server.told, room.audit) == ([], [])


def test_without_a_way_out_it_says_so(tmp_path: Path) -> None:
    room = Room(tmp_path)
    assert room.run(100, POD) is EvictState.REFUSED
    assert "--evict-by=kill" in room.evictor.book()["uid-a"].error
    assert Room(tmp_path / "2", by=EvictBy.API).run(100, WISH) is EvictState.REFUSED


def test_killing_a_pod_spares_its_sandbox_and_tells_the_server(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    server = Server()
    room = Room(tmp_path, server, EvictBy.KILL)
    room.put(f"{POD.cgroup}/main", process)
    sandbox = room.tree.host.dir("cpu", f"{POD.cgroup}/pause")
    sandbox.mkdir(parents=True)
    (sandbox / "cgroup.procs").write_text("1\n")
    room.run(100, replace(POD, parts=(f"{POD.cgroup}/main",)))
    assert process.wait(10) == -9
    assert (server.asked, server.told) == (["uid-a"], [("a", "evictPodSuccess")])


def test_observe_only_tells(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    room = Room(tmp_path, observe=True)
    room.put("batch/a", process)
    for second in range(100, 110):
        assert room.run(second, WISH) is EvictState.OBSERVED
    assert process.poll() is None
    assert [record.mode for record in room.audit] == ["observe"]
