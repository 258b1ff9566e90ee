"""GET /events: the query protocol of spec/api 4.5 and the faults of the reference that are not repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.model.audit import AuditRecord
from koordlet.report import auditquery
from koordlet.report.audit import ROTATE_BYTES, AuditLog
from koordlet.report.auditquery import LINE_MAX_BYTES, READER_TTL_S, AuditQuery


def write(directory: Path, count: int, start: int = 0) -> AuditLog:
    audit = AuditLog(directory)
    for index in range(start, start + count):
        audit(AuditRecord(3, "node", "test", f"m{index}"))
    return audit


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Reader:
    """One client."""

    def __init__(self, query: AuditQuery) -> None:
        self.query = query

    def ask(self, accept: str = "application/json", **query: str) -> tuple[list[str], str]:
        status, kind, body, headers = self.query.page(query, accept)
        assert status == 200, body
        if accept == "application/json":
            assert kind == "application/json; charset=utf-8"
            found: dict[str, Any] = json.loads(body)
            assert list(found) == ["NextPageToken", "Events"]
            return [row["message"] for row in found["Events"]], found["NextPageToken"]
        assert kind == "text/plain; charset=utf-8"
        return [json.loads(line)["message"] for line in body.splitlines()], headers.get("Next-Page-Token", "")

    def refused(self, **query: str) -> tuple[int, str]:
        status, _, body, _ = self.query.page(query, "")
        return status, body.decode().strip()

    def all(self, size: int) -> list[str]:
        found, token = self.ask(size=str(size))
        while token:
            more, token = self.ask(size=str(size), pageToken=token)
            found += more
        return found


@pytest.mark.parametrize(
    "accept", ["application/json", "", "text/html, application/json"], ids=["json", "text", "list"]
)
def test_v38(tmp_path: Path, accept: str) -> None:
    write(tmp_path, 3)
    reader = Reader(AuditQuery(tmp_path))
    first, token = reader.ask(accept, size="2")
    assert first == ["m2", "m1"]
    assert token
    assert reader.ask(accept, size="2", pageToken=token) == (["m0"], "")
    whole, token = reader.ask(accept, size="3")
    assert whole == ["m2", "m1", "m0"]
    assert token
    assert reader.ask(accept, size="3", pageToken=token) == ([], "")


def test_v38_sizes(tmp_path: Path) -> None:
    write(tmp_path, 300)
    reader = Reader(AuditQuery(tmp_path))
    assert reader.refused(size="2049") == (400, "size(2049) exceeds the limit(2048)")
    for absent in ("abc", "", "1.5", "1_0", "0x10"):
        assert len(reader.ask(size=absent)[0]) == 256
    assert len(reader.ask()[0]) == 256
    assert reader.refused(size="-1")[0] == 400  # the reference panics
    assert reader.refused(size="0")[0] == 400


def test_unknown_ended_and_expired_tokens(tmp_path: Path) -> None:
    write(tmp_path, 5)
    clock = Clock()
    reader = Reader(AuditQuery(tmp_path, max_readers=2, clock=clock))
    assert reader.refused(pageToken="nonsense") == (409, "invalid pageToken nonsense")
    tokens = [reader.ask(size="1")[1] for _ in range(3)]
    assert reader.refused(pageToken=tokens[0]) == (409, f"reader {tokens[0]} is expired")  # three were too many
    assert reader.ask(size="1", pageToken=tokens[1])[0] == ["m3"]
    clock.now_s = READER_TTL_S + 1
    for token in tokens[1:]:  # all of them in one sweep
        assert reader.refused(pageToken=token) == (409, f"reader {token} is expired")
    found, token = reader.ask(size="2048")
    assert (len(found), token) == (5, "")


def test_a_page_that_ends_with_the_data_needs_no_reader(tmp_path: Path) -> None:
    write(tmp_path, 1)
    query = AuditQuery(tmp_path)
    for _ in range(20):
        assert Reader(query).ask(size="2") == (["m0"], "")
    assert not query._cursors


def test_nothing_there(tmp_path: Path) -> None:
    assert Reader(AuditQuery(tmp_path / "none")).ask() == ([], "")
    assert Reader(AuditQuery(None)).ask("") == ([], "")


def test_the_last_record_is_seen_at_once(tmp_path: Path) -> None:
    audit = write(tmp_path, 1)
    reader = Reader(AuditQuery(tmp_path))
    for index in range(1, 5):
        audit(AuditRecord(3, "node", "test", f"m{index}"))
        assert reader.ask(size="1")[0] == [f"m{index}"]


def test_malformed_lines_count_but_are_not_shown(tmp_path: Path) -> None:
    write(tmp_path, 2).close()
    with (tmp_path / "audit.log").open("ab") as file:
        file.write(b'{"torn": \n[1]\nnull\n\n\xff\xfe\n')
    reader = Reader(AuditQuery(tmp_path))
    found, token = reader.ask(size="5")
    assert (found, bool(token)) == (["m1"], True)
    assert reader.ask(size="5", pageToken=token) == (["m0"], "")


def test_a_line_of_any_length_keeps_nothing_behind_it(tmp_path: Path) -> None:
    long = json.dumps({"message": "L" * 300_000})
    endless = json.dumps({"message": "E" * (2 * LINE_MAX_BYTES)})
    rows = [json.dumps({"message": "a"}), long, json.dumps({"message": "b"}), endless, json.dumps({"message": "c"})]
    (tmp_path / "audit.log").write_text("\n".join(rows) + "\n")
    found, token = Reader(AuditQuery(tmp_path)).ask(size="10")
    assert [text[:1] for text in found] == ["c", "b", "L", "a"]
    assert token == ""


def test_a_page_ends_early_before_it_grows_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 50)
    monkeypatch.setattr(auditquery, "PAGE_MAX_BYTES", 500)
    reader = Reader(AuditQuery(tmp_path))
    first, token = reader.ask(size="50")
    assert 1 < len(first) < 50
    assert token
    assert reader.all(50) == [f"m{index}" for index in reversed(range(50))]


def test_rotation_in_the_middle_neither_skips_nor_repeats(tmp_path: Path) -> None:
    audit = write(tmp_path, 10)
    reader = Reader(AuditQuery(tmp_path))
    found, token = reader.ask(size="4")
    (tmp_path / "audit.log").rename(tmp_path / "audit-2026-07-24-14-52-45-0.log")
    for index in range(10, 13):
        audit(AuditRecord(3, "node", "test", f"m{index}"))
    more, _ = reader.ask(size="20", pageToken=token)
    assert found + more == [f"m{index}" for index in reversed(range(10))]
    assert reader.all(3) == [f"m{index}" for index in reversed(range(13))]


def test_all_files_newest_first(tmp_path: Path) -> None:
    for stamp, numbers in (
        ("2026-07-24-10-00-00-0", (0, 1)),
        ("2026-07-24-10-00-00-1", (2,)),
        ("2026-07-25-10-00-00-0", (3,)),
    ):
        text = "".join(json.dumps({"message": f"m{number}"}) + "\n" for number in numbers)
        (tmp_path / f"audit-{stamp}.log").write_text(text)
    write(tmp_path, 2, start=4)
    reader = Reader(AuditQuery(tmp_path))
    assert reader.all(2) == [f"m{index}" for index in reversed(range(6))]
    first, token = reader.ask(size="2")
    (tmp_path / "audit-2026-07-24-10-00-00-0.log").unlink()  # the oldest was removed to make room
    more, _ = reader.ask(size="9", pageToken=token)
    assert first + more == ["m5", "m4", "m3", "m2"]


def test_more_than_one_file_as_the_log_rotates_itself(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)
    count = ROTATE_BYTES // 900 + 200
    for index in range(count):
        audit(AuditRecord(3, "node", "test", f"m{index}", target="t" * 1000))
    assert len(list(tmp_path.glob("audit-*.log"))) == 1
    assert Reader(AuditQuery(tmp_path)).all(500) == [f"m{index}" for index in reversed(range(count))]


def test_w41_the_disk_space_is_seven_old_files_and_the_active_one(tmp_path: Path) -> None:
    assert AuditLog(tmp_path, max_mb=16)._max_files == 8
    assert AuditLog(tmp_path, max_mb=1)._max_files == 1  # the reference crashes at its first rotation


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 7))
def test_backwards_is_the_reverse_whatever_the_bytes(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], block: int
) -> None:
    path = tmp_path_factory.mktemp("f") / "audit.log"
    clean = [line.replace(b"\n", b"?") for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in clean))
    before = auditquery._BLOCK_BYTES
    auditquery._BLOCK_BYTES = block  # type: ignore[misc]
    try:
        found = list(auditquery._backwards(path.parent))
    finally:
        auditquery._BLOCK_BYTES = before  # type: ignore[misc]
    assert found == [line for line in reversed(clean) if line]
