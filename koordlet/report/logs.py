"""Where log events go: one line per action on stderr, as text for people or JSON for machines."""

from __future__ import annotations

import logging
import sys

import structlog


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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
