"""The audit file: format, levels, rotation, and what happens when the disk does not take it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from koordlet.model.audit import AuditRecord
from koordlet.model.why import stages
from koordlet.report.audit import ROTATE_BYTES, TAIL_RECORDS, AuditLog

WALL_S = 1_790_000_000.25


class Clock:
    now_s = WALL_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def record(message: str = "m", level: int = 3, **more: object) -> AuditRecord:
    return AuditRecord(level, "node", "UpdateCgroups", message, **more)  # type: ignore[arg-type]


def lines(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / "audit.log").read_text().splitlines()]


def rotated(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("audit-*.log"))


@pytest.fixture
def open_logs() -> Iterator[list[AuditLog]]:
    logs: list[AuditLog] = []
    yield logs
    for log in logs:
        log.close()


def test_a_record_is_on_disk_at_once_with_the_reference_keys(tmp_path: Path, clock: Clock) -> None:
    log = AuditLog(tmp_path / "new", clock=clock)
    log(record(namespace="ns", name="p", why=stages(ls_mcpu=400), target="kubepods/besteffort"))
    (row,) = lines(tmp_path / "new")
    at = row.pop("createdAt")
    assert datetime.fromisoformat(str(at)).timestamp() == WALL_S
    assert row == {
        "level": 3, "type": "node", "namespace": "ns", "name": "p", "reason": "UpdateCgroups", "message": "m",
        "target": "kubepods/besteffort", "mode": "write", "why": {"ls_mcpu": 400},
    }  # fmt: skip
    log.close()


@pytest.mark.parametrize(
    ("verbose", "kept"), [(0, [0, 1, 3, 5]), (1, [0, 1]), (3, [0, 1, 3]), (5, [0, 1, 3, 5])], ids=lambda v: str(v)
)
def test_verbosity_drops_higher_levels(
    tmp_path: Path, clock: Clock, open_logs: list[AuditLog], verbose: int, kept: list[int]
) -> None:
    log = AuditLog(tmp_path, verbose=verbose, clock=clock)
    open_logs.append(log)
    for level in (0, 1, 3, 5):
        log(record(level=level))
    assert [row["level"] for row in lines(tmp_path)] == kept
    assert [row["level"] for row in log.tail()] == kept


def test_rotation_counts_what_a_former_process_wrote(tmp_path: Path, clock: Clock, open_logs: list[AuditLog]) -> None:
    (tmp_path / "audit.log").write_bytes(b"{}\n" * ((ROTATE_BYTES - 30) // 3))
    log = AuditLog(tmp_path, clock=clock)
    open_logs.append(log)
    log(record("over"))
    stamp = datetime.fromtimestamp(WALL_S).strftime("%Y-%m-%d-%H-%M-%S")
    assert rotated(tmp_path) == [f"audit-{stamp}-0.log"]
    assert not (tmp_path / "audit.log").exists()
    log(record("next"))
    assert [row["message"] for row in lines(tmp_path)] == ["next"]


@pytest.mark.parametrize(("max_mb", "files"), [(16, 8), (4, 2), (2, 1), (0, 1)], ids=lambda v: str(v))
def test_the_oldest_go_first(tmp_path: Path, clock: Clock, open_logs: list[AuditLog], max_mb: int, files: int) -> None:
    log = AuditLog(tmp_path, max_mb=max_mb, clock=clock)
    open_logs.append(log)
    names = []
    for _ in range(10):
        clock.now_s += 1
        (tmp_path / "audit.log").write_bytes(b"x" * ROTATE_BYTES + b"\n")
        log.close()
        log(record())
        names.append(f"audit-{datetime.fromtimestamp(clock.now_s).strftime('%Y-%m-%d-%H-%M-%S')}-0.log")
    keep = files - 1
    assert rotated(tmp_path) == sorted(names)[len(names) - keep :]


def test_a_clock_that_is_set_back_does_not_make_the_newest_the_oldest(
    tmp_path: Path, clock: Clock, open_logs: list[AuditLog]
) -> None:
    log = AuditLog(tmp_path, max_mb=8, clock=clock)
    open_logs.append(log)
    for number in range(12):
        clock.now_s += 1 if number != 6 else -3600
        (tmp_path / "audit.log").write_bytes(b"x" * ROTATE_BYTES + b"\n")
        log.close()
        log(record(f"round {number}"))
    kept = [json.loads((tmp_path / name).read_text().splitlines()[1])["message"] for name in rotated(tmp_path)]
    assert kept == ["round 9", "round 10", "round 11"]


def test_ten_rotations_in_one_second_lose_nothing(tmp_path: Path, clock: Clock, open_logs: list[AuditLog]) -> None:
    log = AuditLog(tmp_path, max_mb=64, clock=clock)
    open_logs.append(log)
    for _ in range(10):
        log.close()
        with open(tmp_path / "audit.log", "ab") as file:
            file.write(b"x" * ROTATE_BYTES + b"\n")
        log(record())
    assert [name[-6:] for name in rotated(tmp_path)] == [f"-{i}.log" for i in range(9)]
    assert (tmp_path / "audit.log").stat().st_size > ROTATE_BYTES


def test_a_torn_last_line_spoils_no_other(tmp_path: Path, clock: Clock, open_logs: list[AuditLog]) -> None:
    (tmp_path / "audit.log").write_bytes(b'{"createdAt":"20')
    log = AuditLog(tmp_path, clock=clock)
    open_logs.append(log)
    log(record("whole"))
    assert json.loads((tmp_path / "audit.log").read_text().splitlines()[1])["message"] == "whole"


def test_a_file_removed_by_hand_is_made_again(tmp_path: Path, clock: Clock, open_logs: list[AuditLog]) -> None:
    log = AuditLog(tmp_path, clock=clock)
    open_logs.append(log)
    log(record("one"))
    (tmp_path / "audit.log").unlink()
    log(record("two"))
    assert [row["message"] for row in lines(tmp_path)] == ["two"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_counted_and_survived(tmp_path: Path, clock: Clock, open_logs: list[AuditLog]) -> None:
    (tmp_path / "audit.log").symlink_to("/dev/full")
    log = AuditLog(tmp_path, clock=clock)
    open_logs.append(log)
    log(record("a"))
    log(record("b"))
    assert log.write_errors == 2
    assert "No space left" in log.last_error
    (tmp_path / "audit.log").unlink()
    log(record("c"))
    assert log.last_error == ""
    assert [row["message"] for row in lines(tmp_path)] == ["c"]
    assert [row["message"] for row in log.tail()] == ["a", "b", "c"]


def test_a_directory_that_is_a_file_is_survived(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "f").write_text("")
    log = AuditLog(tmp_path / "f" / "deep", clock=clock)
    log(record())
    assert log.write_errors == 1


def test_memory_only_keeps_a_bounded_tail(clock: Clock) -> None:
    log = AuditLog(None, clock=clock)
    for number in range(TAIL_RECORDS + 5):
        log(record(str(number)))
    assert len(log.tail()) == TAIL_RECORDS
    assert [row["message"] for row in log.tail(2)] == ["259", "260"]
    assert log.tail(0) == []


def test_bytes_that_are_no_text_and_long_text_stay_valid_json(
    tmp_path: Path, clock: Clock, open_logs: list[AuditLog]
) -> None:
    log = AuditLog(tmp_path, clock=clock)
    open_logs.append(log)
    log(record("x" * 5000, name="caf\udce9 \n ü"))
    (row,) = lines(tmp_path)
    assert row["name"] == "caf\udce9 \n ü"
    assert len(str(row["message"])) == 1024
