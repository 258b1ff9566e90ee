import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.act.journal import COMPACT_BYTES, Entry, Journal, JournalError, read_boot_id
from koordlet.model.knob import Knob
from koordlet.model.status import HeldState
from tests.hosts.act_node import Node, want

QUOTA = Knob.CPU_QUOTA


def entry(n: int = 1, original: bytes = b"-1\n") -> Entry:
    return Entry(f"be/{n}", QUOTA, f"/cg/cpu/be/{n}/cpu.cfs_quota_us", 100 + n, original, [b"5000"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lib/journal"


def reopened(journal: Journal, boot: str = "boot-1") -> Journal:
    journal.close()
    return Journal(journal.path, boot)


def test_round_trip(path: Path) -> None:
    journal = Journal(path, "boot-1")
    odd = entry(2, b"\xff\x00\n")
    journal.add([entry(1), odd])
    again = reopened(journal)
    assert [(e.target, e.knob, e.inode, e.original, e.ours) for e in again.live()] == [
        ("be/1", QUOTA, 101, b"-1\n", [b"5000"]),
        ("be/2", QUOTA, 102, b"\xff\x00\n", [b"5000"]),
    ]
    assert again.find("be/2", QUOTA, 102) is not None
    assert again.find("be/2", QUOTA, 999) is None
    again.close()


def test_values_on_their_way_and_settled(path: Path) -> None:
    journal = Journal(path, "boot-1")
    one = entry()
    journal.add([one])
    journal.intend([(one, b"6000"), (one, b"7000")])
    journal = reopened(journal)
    (one,) = journal.live()
    assert one.ours == [b"5000", b"6000", b"7000"]
    journal.settle([(one, b"7000\n")])
    journal = reopened(journal)
    assert journal.live()[0].ours == [b"7000\n"]
    journal.settle((), journal.live())
    journal = reopened(journal)
    assert journal.live() == ()
    assert path.read_bytes().startswith(b"#")
    assert path.read_bytes().count(b"\n") == 1
    journal.close()


def test_another_boot_drops_everything(path: Path) -> None:
    journal = Journal(path, "boot-1")
    journal.add([entry()])
    journal = reopened(journal, "boot-2")
    assert journal.live() == ()
    journal.close()


@pytest.mark.parametrize("cut", range(1, 180, 7))
def test_a_torn_last_line_never_existed(path: Path, cut: int) -> None:
    journal = Journal(path, "boot-1")
    journal.add([entry(1)])
    whole = path.stat().st_size
    journal.add([entry(2)])
    journal.close()
    os.truncate(path, max(whole, path.stat().st_size - cut))
    journal = Journal(path, "boot-1")
    assert [e.target for e in journal.live()] == ["be/1"]
    journal.add([entry(3)])
    journal = reopened(journal)
    assert [e.target for e in journal.live()] == ["be/1", "be/3"]
    journal.close()


def test_damage_in_the_middle_costs_one_record(path: Path) -> None:
    journal = Journal(path, "boot-1")
    journal.add([entry(1)])
    spot = path.stat().st_size + 40
    journal.add([entry(2)])
    journal.add([entry(3)])
    journal.close()
    with path.open("r+b") as file:
        file.seek(spot)
        file.write(b"\x00\x00")
    journal = Journal(path, "boot-1")
    assert [e.target for e in journal.live()] == ["be/1", "be/3"]
    journal.close()


@pytest.mark.parametrize("content", [b"", b"\n\n", b"garbage\nmore", bytes(range(256)) * 20, b'0 {"original":1}\n'])
def test_garbage_is_survived(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    journal = Journal(path, "boot-1")
    assert journal.live() == ()
    journal.add([entry()])
    journal = reopened(journal)
    assert len(journal.live()) == 1
    journal.close()


def test_ids_are_not_reused_after_a_restart(path: Path) -> None:
    journal = Journal(path, "boot-1")
    one, two = entry(1), entry(2)
    journal.add([one, two])
    journal.settle((), [one])
    journal = reopened(journal)
    three = entry(3)
    journal.add([three])
    assert len({e.id for e in journal.live()}) == 2
    journal.close()


def test_it_does_not_grow_for_ever(path: Path) -> None:
    journal = Journal(path, "boot-1")
    one = entry()
    journal.add([one])
    for n in range(12_000):
        journal.intend([(one, b"%d" % (n + 1000))])
        journal.settle([(one, b"%d\n" % (n + 1000))])
    assert path.stat().st_size <= COMPACT_BYTES + 1000
    journal = reopened(journal)
    assert journal.live()[0].ours == [b"12999\n"]
    assert [p.name for p in path.parent.iterdir()] == ["journal"]
    journal.close()


def test_unreadable_journal_is_an_error(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(JournalError, match="journal"):
        Journal(path, "boot-1")


def test_boot_id_of_a_copied_tree(node: Node) -> None:
    assert read_boot_id(node.tree.host) == ""
    node.tree.put("proc/sys/kernel/random/boot_id", "abc\n")
    assert read_boot_id(node.tree.host) == "abc"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of four pages."""
    place = tmp_path / "tiny"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", place], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no mount here: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(place: Path) -> Path:
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 512):
                pass
        except OSError:
            pass
    return ballast


def test_full_disk_no_original_no_write(node: Node, tiny_disk: Path) -> None:
    node.stop()
    node.journal_path = tiny_disk / "journal"
    node.start()
    node.apply(want("be", QUOTA, 50_000))
    ballast = fill(tiny_disk)
    for n in range(40):  # the journal's own page still has room; use it up
        node.tree.cgroup(f"be/p{n}", {"cpuset.cpus": "0-7\n"})
    crowd = [want(f"be/p{n}", Knob.CPU_SHARES, 2) for n in range(40)]
    report = node.apply(want("be", QUOTA, 50_000), *crowd)
    assert (report.written, report.failed) == (0, 40)
    assert {node.read(f"be/p{n}", Knob.CPU_SHARES) for n in range(40)} == {"1024"}
    assert node.state("be/p0", Knob.CPU_SHARES) is HeldState.FAILED
    assert node.executor.degraded() == ("journal: No space left on device",)
    known = node.apply(want("be", QUOTA, 60_000), *crowd)  # its original is recorded: it goes on
    assert (known.written, node.read("be", QUOTA)) == (1, "60000")
    ballast.unlink()
    node.apply(want("be", QUOTA, 60_000), *crowd, after_s=61)
    assert {node.read(f"be/p{n}", Knob.CPU_SHARES) for n in range(40)} == {"2"}
    assert node.executor.degraded() == ()
    node.stop()
    node.start()
    assert node.executor.restore_all(node.now_s, "stop").restored == 41
    assert node.read("be", QUOTA) == "-1"
    node.stop()


def test_full_disk_from_the_start(node: Node, tiny_disk: Path) -> None:
    node.stop()
    ballast = fill(tiny_disk)
    node.journal_path = tiny_disk / "journal"
    node.start()
    report = node.apply(want("be", QUOTA, 50_000), want("be/pod", Knob.CPU_IDLE, 1))
    assert (report.written, report.failed, node.kernel.calls) == (0, 2, 0)
    assert len(node.executor.degraded()) == 1
    ballast.unlink()
    assert node.apply(want("be", QUOTA, 50_000), want("be/pod", Knob.CPU_IDLE, 1), after_s=2).written == 2
    node.stop()


def test_read_only_disk_keeps_what_was_recorded_undoable(node: Node, tiny_disk: Path) -> None:
    node.stop()
    node.journal_path = tiny_disk / "journal"
    node.start()
    node.apply(want("be", QUOTA, 50_000))
    node.stop()
    subprocess.run(["mount", "-o", "remount,ro", tiny_disk], check=True)
    node.start()
    assert node.executor.degraded() == ("journal: Read-only file system",)
    assert node.apply(want("be", QUOTA, 50_000), want("be", Knob.CPU_SHARES, 2)).failed == 1
    assert node.executor.restore_all(node.now_s, "stop").restored == 1
    assert node.read("be", QUOTA) == "-1"
    node.stop()


def test_a_removed_journal_is_written_anew(path: Path) -> None:
    """Somebody empties the state directory while we run: what we hold must still be undoable after a crash."""
    journal = Journal(path, "boot-1")
    journal.add([entry(1)])
    path.unlink()
    path.parent.rmdir()
    journal.check()
    assert [e.target for e in reopened(journal).live()] == ["be/1"]

    journal = Journal(path, "boot-1")
    path.unlink()
    journal.add([entry(2)])
    again = reopened(journal)
    assert [e.target for e in again.live()] == ["be/1", "be/2"]
    again.close()


@pytest.mark.parametrize(
    ("content", "damaged"), [(b"garbage without end" * 1000, 1), (b"# x\n{}\nno json\n", 2), (b"", 0)]
)
def test_unreadable_lines_are_counted(path: Path, content: bytes, damaged: int) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    journal = Journal(path, "boot-1")
    assert (journal.damaged, journal.live()) == (damaged, ())
    journal.close()
