"""`koordlet top`: the live view. On a terminal a full screen that ends with q; elsewhere plain frames."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from koordlet.cli.client import AgentError, ask_ok
from koordlet.cli.screen import add_output, add_socket, console, fail, parser, print_json

LIVE_INTERVAL_S = 1.0
PLAIN_INTERVAL_S = 2.0
KEYS = "q quit"


def main(argv: list[str]) -> int:
    options = parser("top", "Live view of the running agent: node, QoS classes, pods, best-effort allowance and why.")
    add_socket(options)
    options.add_argument("--once", action="store_true", help="print one frame and end")
    options.add_argument("--frames", type=int, metavar="N", help="print N frames and end")
    options.add_argument("--cpus", action="store_true", help="print the map of the machine's CPUs, who owns each")
    add_output(options, "of --cpus; default text")
    given = options.parse_args(argv)
    if given.output == "json" and not given.cpus:
        options.error("--output json goes with --cpus; the live view as JSON is `koordlet status --output json`")
    if given.frames is not None and given.frames < 1:
        options.error("--frames: at least 1")
    try:
        if given.cpus:
            return _cpus(given.socket, given.output)
        with ends_on_sigterm():
            return watch(given.socket, 1 if given.once else given.frames)
    except KeyboardInterrupt:
        return 0
    except AgentError as error:
        return fail("top", error)


def _cpus(socket_path: str, output: str) -> int:
    answer: dict[str, Any] = ask_ok(socket_path, "/v1/cpus")
    if output == "json":
        print_json(answer)
        return 0
    from koordlet.cli.cpuview import cpu_map

    screen = console()
    screen.print(cpu_map(answer, screen.width))
    return 0


def watch(socket_path: str, frames: int | None = None, dead: Callable[[], str] = str) -> int:
    """Show frames until q, or `frames` of them (plain then). dead: why to stop now, "" to go on.

    Raises AgentError when there is no first answer, or none to a plain frame, and KeyboardInterrupt.
    """

    def fetch() -> dict[str, Any]:
        answer: dict[str, Any] = ask_ok(socket_path, "/v1/top")
        return answer

    if frames is None and sys.stdout.isatty() and sys.stdin.isatty():
        return _live(fetch, dead)
    return _plain(fetch, frames, dead)


@contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that closes, unwind like Ctrl-C: the terminal and a child are left in order."""
    before = [(number, signal.signal(number, signal.default_int_handler)) for number in (signal.SIGTERM, signal.SIGHUP)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _plain(fetch: Callable[[], dict[str, Any]], frames: int | None, dead: Callable[[], str]) -> int:
    from koordlet.cli.topview import frame

    screen = console()
    shown = 0
    while True:
        if reason := dead():
            raise AgentError(reason)
        if shown:
            screen.print()
        screen.print(frame(fetch(), screen.width))
        sys.stdout.flush()
        shown += 1
        if shown == frames:
            return 0
        time.sleep(PLAIN_INTERVAL_S)


def _live(fetch: Callable[[], dict[str, Any]], dead: Callable[[], str]) -> int:
    from rich.live import Live

    from koordlet.cli.topview import frame

    screen = console()
    answer, fault = fetch(), ""
    with _keys() as pressed, Live(console=screen, screen=True, auto_refresh=False) as view:
        while True:
            view.update(frame(answer, screen.size.width, screen.size.height, fault, KEYS), refresh=True)
            if pressed(LIVE_INTERVAL_S) in ("q", "Q", "\x1b"):
                return 0
            if reason := dead():
                break
            try:
                answer, fault = fetch(), ""
            except AgentError as error:
                fault = str(error).partition("\n")[0]
    raise AgentError(reason)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits up to some seconds for one key, "" when none came. The terminal is put back."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed(wait_s: float) -> str:
        ready, _, _ = select.select([fd], [], [], wait_s)
        if not ready:
            return ""
        return os.read(fd, 64).decode("utf-8", "replace")[:1] or "q"  # end of file: the terminal went away

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
