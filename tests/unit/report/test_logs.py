"""Log lines: they reach stderr whole, and nothing that happens to stderr reaches the agent."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from koordlet.report import logs


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_a_line_reaches_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("json", 0)
    structlog.get_logger().warning("odd", name="\ud800")
    assert '"event": "odd"' in capfd.readouterr().err


def test_debug_needs_verbosity(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("text", 4)
    structlog.get_logger().debug("hidden")
    logs.configure("text", 5)
    structlog.get_logger().debug("shown")
    text = capfd.readouterr().err
    assert "shown" in text
    assert "hidden" not in text


def test_a_full_disk_is_no_error() -> None:
    with Path("/dev/full").open("w") as full:
        logs.Lines(full).msg("lost")


def test_a_reader_that_left_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        logs.Lines(stream).msg("lost")


def test_no_stderr_is_no_error(tmp_path: Path) -> None:
    logs.Lines(None).msg("lost")
    with (tmp_path / "log").open("w") as stream:
        pass
    logs.Lines(stream).msg("lost")


def test_a_signal_handler_logs_while_a_line_is_written(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        lines = logs.Lines(stream)
        before = signal.signal(signal.SIGALRM, lambda *_: lines.msg("handler"))
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        try:
            for number in range(20_000):
                lines.msg(f"line {number}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    found = (tmp_path / "log").read_text().splitlines()
    assert [line for line in found if line != "handler"] == [f"line {number}" for number in range(20_000)]
    assert "handler" in found
