"""What all commands that people look at share: the console, rows of label and text, errors, options."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from koordlet.cli.client import DEFAULT_SOCKET

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

PLAIN_WIDTH: Final = 120
"""Columns where the output is not a terminal, unless COLUMNS says another number."""


def console(stderr: bool = False) -> Console:
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:  # rich would end the process with 1
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS", "").isdigit() else PLAIN_WIDTH
    return PipeConsole(file=stream, width=width, highlight=False, emoji=False, markup=False)


def fail(command: str, text: object, code: int = 1) -> int:
    """Say what is wrong, and return the exit code."""
    sys.stderr.write(f"koordlet {command}: {text}\n")
    return code


def print_json(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=not _is_utf8()) + "\n")


def parser(command: str, about: str, epilog: str = "") -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"koordlet {command}",
        description=about,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_socket(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--socket", default=DEFAULT_SOCKET, metavar="PATH", help=f"the agent's socket (default {DEFAULT_SOCKET})"
    )


def add_output(options: argparse.ArgumentParser, what: str = "default text") -> None:
    options.add_argument("--output", choices=("text", "json"), default="text", help=what)


def table(*columns: str, right: tuple[str, ...] = (), wrap: tuple[str, ...] = ()) -> Table:
    """Columns with a thin head, no frame. Those in `wrap` share the rest of the width; others never wrap."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name not in wrap,
            overflow="fold" if name in wrap else "ellipsis",
        )
    return made


def sheet() -> Table:
    """Rows of label and text."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True, style="bold cyan", min_width=12)
    made.add_column(overflow="fold")
    return made


def indent(item: RenderableType, left: int = 2) -> RenderableType:
    from rich.padding import Padding

    return Padding(item, (0, 0, 0, left))


def bar(part: float | None, whole: float | None, width: int) -> tuple[str, str]:
    """(filled, rest) of a bar of `width` columns."""
    share = min(max((part or 0) / whole, 0.0), 1.0) if whole else 0.0
    filled = round(share * width)
    on, off = ("█", "░") if _is_utf8() else ("#", ".")
    return on * filled, off * (width - filled)


def _is_utf8() -> bool:
    stream = sys.__stdout__ or sys.stdout  # a live view replaces sys.stdout by one without an encoding
    return (stream.encoding or "").lower().replace("-", "") == "utf8"
