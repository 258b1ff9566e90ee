"""`koordlet run`: the agent in the foreground, or with --top as a child behind the live view."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordlet.cli.client import AgentError, ask
from koordlet.cli.screen import console, fail
from koordlet.model.places import SOCKET_FILE

if TYPE_CHECKING:
    from koordlet.config.flags import Flags

START_LIMIT_S: Final = 30.0
STOP_LIMIT_S: Final = 30.0
LAST_LINES: Final = 20
PR_SET_PDEATHSIG: Final = 1

USAGE: Final = """\
usage: koordlet run [--top [--frames N]] [-FLAG[=VALUE]]...

Runs the agent until SIGTERM or SIGINT; values it wrote are put back at the end (-restore-on-exit).
Without NODE_NAME and without cluster flags it runs standalone, for workloads declared on this machine.

  --top        show the live view; the agent runs as a child and stops with it
  --frames N   with --top: print N plain frames, then stop

examples:
  koordlet run --observe --top                     look, write nothing
  koordlet run -workloads=FILE -policy=FILE        standalone
  NODE_NAME=a koordlet run -feature-gates=AllAlpha=true -pods=http://127.0.0.1:10255/pods/

"""


def main(argv: list[str]) -> int:
    from koordlet.config.errors import UsageError
    from koordlet.config.flags import HelpRequested, help_text, parse

    try:
        top, frames, words = _own_options(argv)
        flags = parse(words, os.environ)
    except HelpRequested:
        sys.stdout.write(USAGE + help_text(os.environ))
        return 0
    except UsageError as error:
        return fail("run", f"{error}\n  koordlet run --help lists the flags", 2)
    if top:
        return _with_view(words, flags, frames)
    return load_agent()(flags)


def load_agent() -> Callable[[Flags], int]:
    """The agent's entry, imported without rich: structlog takes it where it finds it, for tracebacks that the agent
    does not print. That would be 4 MB of memory and 60 ms of its start."""
    hide = "rich" not in sys.modules
    if hide:
        sys.modules["rich"] = None  # type: ignore[assignment]  # the import system's way to say "not there"
    try:
        from koordlet.daemon import run
    finally:
        if hide:
            del sys.modules["rich"]
    return run


def _own_options(argv: list[str]) -> tuple[bool, int | None, list[str]]:
    """(--top, --frames, the agent's flags). Raises UsageError."""
    from koordlet.config.errors import UsageError

    top, frames, words = False, "", []
    rest = iter(argv)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in ("--top", "-top") and value in ("", "true"):
            top = True
        elif name in ("--frames", "-frames"):
            frames = value if equals else next(rest, "")
            if not (frames.isascii() and frames.isdigit() and int(frames[:9]) > 0):
                raise UsageError(f"flag -frames: {frames[:80]!r} is not allowed, expected a number of 1 or more")
        else:
            words.append(word)
    if frames and not top:
        raise UsageError("flag -frames works with --top only")
    return top, int(frames) if frames else None, words


def _with_view(words: list[str], flags: Flags, frames: int | None) -> int:
    from koordlet.cli.top import ends_on_sigterm, watch

    socket_path = str(flags.run_dir / SOCKET_FILE)
    if _answers(socket_path):
        return fail("run", f"an agent runs already; see it with: koordlet top --socket {socket_path}")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    # An installed package is found anyway; a source tree only with this.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_package_root(), os.environ.get("PYTHONPATH"))))
    child = Child([sys.executable, "-m", "koordlet", "run", *words], environment)
    try:
        with ends_on_sigterm():
            _await(child, socket_path)
            return watch(socket_path, frames, child.dead)
    except KeyboardInterrupt:
        return 0
    except AgentError as error:
        # An agent that is going away stops answering before it is gone.
        reason = child.dead(wait_s=1.0) or str(error)
        return fail("run", reason + child.last_lines())
    finally:
        child.stop()


class Child:
    """The agent as a child in a session of its own, so that Ctrl-C reaches only us; its last lines are kept.

    It is told to stop, too, when we are killed: nobody would know of it.
    """

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        import ctypes  # not in the agent itself

        prctl = ctypes.CDLL(None).prctl  # looked up here: between fork and exec as little as possible is done
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._reader = threading.Thread(target=self._read, name="agent-output", daemon=True)
        self._reader.start()

    def dead(self, wait_s: float = 0.0) -> str:
        """How it ended, "" while it runs. wait_s: how long to wait for an end that may be near."""
        try:
            code = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return ""
        return f"the agent was ended by signal {-code}" if code < 0 else f"the agent ended with code {code}"

    def last_lines(self) -> str:
        """What it said last, indented, on lines of their own; complete once it is dead."""
        if self._process.poll() is not None:
            self._reader.join(1.0)
        return "".join(f"\n  {line}" for line in list(self._lines))

    def stop(self) -> None:
        """SIGTERM, and wait until it has put its values back. A second Ctrl-C does not leave it behind."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            fail("run", "the agent did not stop in time and was killed; koordlet undo puts its values back")
        self._reader.join(1.0)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line[:500].decode("utf-8", "replace").rstrip())


def _await(child: Child, socket_path: str) -> None:
    """Until the agent has something to show. Raises AgentError when it dies or takes too long."""
    screen = console(stderr=True)
    until_s = time.monotonic() + START_LIMIT_S
    with screen.status("starting the agent ..."):
        while True:
            if reason := child.dead(wait_s=0.1):
                raise AgentError(reason)
            if _has_figures(socket_path):
                return
            if time.monotonic() > until_s:
                raise AgentError(f"the agent has not answered on {socket_path} for {START_LIMIT_S:g} s")


def _has_figures(socket_path: str) -> bool:
    """The first tick can give no rates; the third one has them or never will."""
    try:
        status, answer = ask(socket_path, "/v1/top")
    except AgentError:
        return False
    return status == 200 and (answer["usage"]["node_mcpu"] is not None or answer["tick"]["ticks"] >= 3)


def _answers(socket_path: str) -> bool:
    """Somebody listens there, well or not."""
    try:
        ask(socket_path, "/healthz")
    except AgentError as error:
        return not error.gone
    return True


def _package_root() -> str:
    return str(Path(__file__).resolve().parents[2])
