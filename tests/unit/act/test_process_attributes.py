"""Scores of real processes; cookies against a kernel of two rules (the real one is asked in the kernel lab)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from koordlet.act.attributes import ATTRIBUTES_FILE, Attributes
from koordlet.act.core_sched import CALM_S, EAGER_S, CoreCookies
from koordlet.act.oom_score import OomScores
from koordlet.kernel.host import Host
from koordlet.model.podeffects import CoreCookie, OomScore
from tests.hosts.tree import v2_one_socket


class Cgroups:
    """Copied cgroups that hold real processes."""

    def __init__(self, root: Path) -> None:
        self.tree = v2_one_socket(root / "host")
        self.host: Host = replace(self.tree.host, proc_root=Path("/proc"))
        self.children: list[subprocess.Popen[bytes]] = []
        self.state = root / "attributes.json"

    def child(self) -> int:
        self.children.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        return self.children[-1].pid

    def put(self, target: str, *pids: int) -> None:
        if not (self.tree.host.cgroup_root / target).is_dir():
            self.tree.cgroup(target)
        (self.tree.host.cgroup_root / target / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))

    def attributes(self) -> Attributes:
        return Attributes(self.state, "boot")

    def scores(self, *, observe: bool = False) -> OomScores:
        return OomScores(self.host, self.attributes(), observe=observe)


@pytest.fixture
def cgroups(tmp_path: Path) -> Iterator[Cgroups]:
    made = Cgroups(tmp_path)
    yield made
    for child in made.children:
        child.kill()
        child.communicate()


def score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def test_a_score_that_the_runtime_set_for_us_is_given_back(cgroups: Cgroups) -> None:
    pid = cgroups.child()
    Path(f"/proc/{pid}/oom_score_adj").write_text("900")
    cgroups.put("box", pid)
    replied = OomScores(cgroups.host, cgroups.attributes(), told={"box": (1000, 900)}.get)
    replied.apply((OomScore("box", (), "podrules", 900),), 0.0)
    assert score(pid) == 900
    cgroups.scores().restore_all(1.0, "stop")
    assert score(pid) == 1000


def wish(target: str, value: int) -> OomScore:
    return OomScore(target, (), "podrules", value)


OWN = score(os.getpid())
HIGH, HIGHER = min(OWN + 300, 900), min(OWN + 400, 1000)


def test_a_score_is_set_kept_and_given_back(cgroups: Cgroups) -> None:
    pid = cgroups.child()
    cgroups.put("c", pid)
    scores = cgroups.scores()
    assert scores.apply((wish("c", HIGH),), 0.0).done == 1
    assert score(pid) == HIGH
    assert scores.apply((wish("c", HIGH),), 1.0).done == 0
    late = cgroups.child()
    cgroups.put("c", pid, late)
    scores.apply((wish("c", HIGH),), 2.0)
    assert score(late) == HIGH
    assert scores.apply((), 3.0).undone == 2
    assert (score(pid), score(late)) == (OWN, OWN)


def test_what_somebody_else_changed_since_is_left(cgroups: Cgroups) -> None:
    pid = cgroups.child()
    cgroups.put("c", pid)
    scores = cgroups.scores()
    scores.apply((wish("c", HIGH),), 0.0)
    Path(f"/proc/{pid}/oom_score_adj").write_text(str(HIGHER))
    scores.restore_all(1.0, "stop")
    assert score(pid) == HIGHER


def test_the_next_start_gives_back_what_a_killed_agent_left(cgroups: Cgroups) -> None:
    pid = cgroups.child()
    cgroups.put("c", pid)
    cgroups.scores().apply((wish("c", HIGH),), 0.0)
    assert cgroups.scores().apply((), 0.0).undone == 1
    assert score(pid) == OWN
    assert cgroups.attributes().of("oom_score_adj") == {}


def test_a_change_of_mind_keeps_the_first_original(cgroups: Cgroups) -> None:
    pid = cgroups.child()
    cgroups.put("c", pid)
    scores = cgroups.scores()
    scores.apply((wish("c", HIGH),), 0.0)
    scores.apply((wish("c", HIGHER),), 1.0)
    assert score(pid) == HIGHER
    scores.restore_all(2.0, "stop")
    assert score(pid) == OWN


def test_observe_writes_nothing(cgroups: Cgroups) -> None:
    pid = cgroups.child()
    cgroups.put("c", pid)
    cgroups.scores(observe=True).apply((wish("c", HIGH),), 0.0)
    assert score(pid) == OWN


def test_a_disk_that_takes_no_original_stops_the_write(cgroups: Cgroups) -> None:
    pid = cgroups.child()
    cgroups.put("c", pid)
    cgroups.state = Path("/proc/nowhere/attributes.json")
    report = cgroups.scores().apply((wish("c", HIGH),), 0.0)
    assert report.failed == 1
    assert score(pid) == OWN


class Kernel:
    """Cookies of processes as the kernel keeps them: a dead one is ESRCH, and only who has one can give it."""

    def __init__(self) -> None:
        self.cookies: dict[int, int] = {}
        self.next = 0x100
        self.calls = 0

    def start(self, *pids: int) -> None:
        self.cookies |= dict.fromkeys(pids, 0)

    def cookie_of(self, pid: int) -> int:
        self.calls += 1
        if pid not in self.cookies:
            raise ProcessLookupError(errno.ESRCH, "No such process", "prctl")
        return self.cookies[pid]

    def create(self, pid: int) -> int:
        self.cookie_of(pid)
        self.next += 1
        self.cookies[pid] = self.next
        return self.next

    def share(self, source: int, pids: Iterable[int]) -> dict[int, OSError]:
        return self._give(self.cookie_of(source), pids)

    def clear(self, pids: Iterable[int]) -> dict[int, OSError]:
        return self._give(0, pids)

    def _give(self, cookie: int, pids: Iterable[int]) -> dict[int, OSError]:
        failed: dict[int, OSError] = {}
        for pid in pids:
            if pid in self.cookies:
                self.cookies[pid] = cookie
            else:
                failed[pid] = ProcessLookupError(errno.ESRCH, "No such process", "prctl")
        return failed


class Core:
    def __init__(self, cgroups: Cgroups) -> None:
        self.cgroups, self.kernel, self.now_s = cgroups, Kernel(), 0.0
        self.counted: list[tuple[str, bool]] = []
        self.start()

    def start(self) -> None:
        self.applier = CoreCookies(
            self.cgroups.host,
            self.cgroups.attributes(),
            kernel=self.kernel,
            count=lambda group, ok: self.counted.append((group, ok)),
        )

    def put(self, target: str, *pids: int) -> None:
        self.kernel.start(*(pid for pid in pids if pid not in self.kernel.cookies))
        self.cgroups.put(target, *pids)

    def round(self, groups: dict[str, str], after_s: float = 1.0) -> None:
        self.now_s += after_s
        wishes = tuple(CoreCookie(target, (), "podrules", group) for target, group in groups.items())
        report = self.applier.apply(wishes, self.now_s)
        assert report.errors == ()

    def of(self, *pids: int) -> set[int]:
        return {self.kernel.cookies[pid] for pid in pids}


@pytest.fixture
def core(cgroups: Cgroups) -> Core:
    return Core(cgroups)


GROUPS = {"a": "g", "b": "g", "c": "h"}


def test_a_group_shares_one_cookie_and_no_other(core: Core) -> None:
    core.put("a", 10, 11)
    core.put("b", 20)
    core.put("c", 30)
    core.round(GROUPS)
    assert len(core.of(10, 11, 20)) == 1
    assert 0 not in core.of(10, 11, 20, 30)
    assert core.of(30) != core.of(10)


def test_a_late_process_joins_and_a_dead_giver_does_no_harm(core: Core) -> None:
    core.put("a", 10)
    core.put("b", 20)
    core.round(GROUPS)
    first = core.of(10)
    del core.kernel.cookies[10]  # still listed: it died a moment ago
    core.put("b", 20, 21)
    core.round(GROUPS)
    assert core.of(20, 21) == first
    del core.kernel.cookies[20], core.kernel.cookies[21]
    core.put("b", 22)
    core.round(GROUPS)
    assert 0 not in core.of(22), "nobody has the old cookie any more: a new one is made"


def test_a_container_that_leaves_its_group_is_cleared(core: Core) -> None:
    core.put("a", 10)
    core.put("b", 20)
    core.round(GROUPS)
    core.round({"a": "g"})
    assert core.of(20) == {0}
    assert core.of(10) != {0}
    core.applier.restore_all(core.now_s, "stop")
    assert core.of(10) == {0}


def test_a_moved_container_takes_the_other_groups_cookie(core: Core) -> None:
    core.put("a", 10)
    core.put("b", 20)
    core.round({"a": "g", "b": "h"})
    core.round({"a": "g", "b": "g"})
    assert len(core.of(10, 20)) == 1


def test_a_new_agent_adopts_the_old_ones_cookies(core: Core) -> None:
    core.put("a", 10)
    core.put("b", 20)
    core.round(GROUPS)
    before = core.of(10, 20)
    core.start()
    core.round(GROUPS)
    assert core.of(10, 20) == before
    core.start()
    core.round({})
    assert core.of(10, 20) == {0}, "what a killed agent left and nobody wants is cleared"


def test_each_round_that_changes_a_group_is_counted(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    core.put("a", 10)
    core.round({"a": "g"})
    core.round({"a": "g"})  # nothing to do
    assert core.counted == [("g", True)]
    core.put("a", 10, 11)

    def refuse(source: int, pids: Iterable[int]) -> dict[int, OSError]:
        return {pid: PermissionError(errno.EPERM, "Operation not permitted", "prctl") for pid in pids}

    monkeypatch.setattr(core.kernel, "share", refuse)
    core.now_s += 1
    assert core.applier.apply((CoreCookie("a", (), "podrules", "g"),), core.now_s).failed == 1
    assert core.counted[1:] == [("g", False)]
    core.round({})
    assert core.counted[2:] == [("g", True)]


def test_a_calm_group_is_seldom_looked_at(core: Core) -> None:
    core.put("a", 10)
    core.round({"a": "g"})
    core.round({"a": "g"}, EAGER_S)
    calls = core.kernel.calls
    for _ in range(5):
        core.round({"a": "g"})
    assert core.kernel.calls == calls
    core.round({"a": "g"}, CALM_S)
    assert core.kernel.calls > calls


@pytest.mark.parametrize("content", [b"garbage\0", b"[]", b'{"boot": "x"'])
def test_a_damaged_file_is_set_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "attributes.json"
    path.write_bytes(content)
    with capture_logs() as logs:
        assert Attributes(path, "boot").of("oom_score_adj") == {}
    assert [line["event"] for line in logs] == ["attributes.broken"]
    assert (tmp_path / "attributes.broken").read_bytes() == content
    with capture_logs() as logs:
        Attributes(path, "boot")
    assert logs == []


def test_the_undo_command_knows_them(cgroups: Cgroups, tmp_path: Path) -> None:
    pid = cgroups.child()
    cgroups.put("c", pid)
    cgroups.state = tmp_path / "state" / ATTRIBUTES_FILE
    cgroups.state.parent.mkdir()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    OomScores(cgroups.host, Attributes(cgroups.state, boot)).apply((wish("c", HIGH),), 0.0)
    words = [f"--state-dir={cgroups.state.parent}", f"--run-dir={tmp_path}", f"--audit-log-dir={tmp_path}", "--yes"]
    done = subprocess.run([sys.executable, "-m", "koordlet", "undo", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1 process, group or device put right" in done.stderr
    assert score(pid) == OWN
    again = subprocess.run([sys.executable, "-m", "koordlet", "undo", *words], capture_output=True, text=True)
    assert "nothing to undo" in again.stdout
