"""Where log events go: one line per action on stderr, as text for people or JSON for machines."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import TextIO

import structlog


class Lines:
    """Writes lines to a stream's descriptor. Never raises: a full disk or a reader that left must not end the agent.

    Takes no lock and has no buffer, because signal handlers log too, even in the middle of another line.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._fd = -1
        with suppress(OSError, ValueError, AttributeError):  # closed, replaced by something without one, or None
            self._fd = stream.fileno() if stream is not None else -1

    def msg(self, message: str) -> None:
        if self._fd < 0:
            return
        data = f"{message}\n".encode("utf-8", "backslashreplace")
        with suppress(OSError):
            while data:
                data = data[os.write(self._fd, data) :]

    debug = info = warning = error = critical = msg


def configure(fmt: str, verbosity: int) -> None:
    """fmt: "text" or "json". verbosity: the reference's -v; 5 and above shows debug events."""
    level = logging.DEBUG if verbosity >= 5 else logging.INFO
    renderer: structlog.typing.Processor
    if fmt == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *([structlog.processors.format_exc_info] if fmt == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: Lines(sys.stderr),
        cache_logger_on_first_use=False,
    )
