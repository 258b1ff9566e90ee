"""Agents and commands forked from a process that has them imported already, for the kernel lab.

Under emulation nearly all of a start is Python reading its modules, and each live test starts an agent. Outside the lab
a live test runs the command itself. By itself this file is the parent of those agents.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import IO, Any

PRELOADED = (
    *("koordlet.cli.run", "koordlet.daemon", "koordlet.drill", "koordlet.load.__main__"),
    *("koordlet.cli.undo", "koordlet.cli.explain", "koordlet.cli.pins"),
)
MAX_WORDS = 1 << 20


class Parent:
    """Its children are the agents, so it is asked how they ended."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.live.forked", str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()

    def ask(self, question: dict[str, object], fds: tuple[int, ...] = ()) -> int | None:
        socket.send_fds(self._socket, [json.dumps(question).encode()], list(fds))
        answer = self._socket.recv(MAX_WORDS)
        if not answer:
            raise AssertionError(f"the agents' parent ended with {self._process.wait()}")
        found: int | None = json.loads(answer)
        return found


class Forked:
    """As much of `subprocess.Popen` as the tests of an agent use."""

    parent: Parent | None = None

    def __init__(self, words: list[str], output: int, errors: int | None = None) -> None:
        if Forked.parent is None:
            Forked.parent = Parent()
        self._parent = Forked.parent
        pid = self._parent.ask({"start": words}, (output, output if errors is None else errors))
        assert pid is not None
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._parent.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end_s = time.monotonic() + (600 if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > end_s:
                raise subprocess.TimeoutExpired("koordlet", timeout or 600)
            time.sleep(0.02)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def serve(questions: socket.socket) -> None:
    """Until the other end is closed."""
    for name in PRELOADED:
        __import__(name)
    while True:
        message, fds, _, _ = socket.recv_fds(questions, MAX_WORDS, 2)
        if not message:
            return
        question = json.loads(message)
        if "poll" in question:
            pid, status = os.waitpid(question["poll"], os.WNOHANG)
            answer = None if pid == 0 else os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                questions.close()
                os.dup2(fds[0], 1)
                os.dup2(fds[1], 2)
                for fd in fds:
                    os.close(fd)
                # By SystemExit, so that the interpreter ends as usual.
                sys.exit(_become("koordlet", question["start"]))
            for fd in fds:
                os.close(fd)
        questions.send(json.dumps(answer).encode())


def _become(module: str, words: list[str]) -> int:
    import koordlet.demo.agent
    import koordlet.load.child
    from koordlet.cli import main as command
    from koordlet.load.__main__ import main as load

    for used in (koordlet.demo.agent, koordlet.load.child):  # what a drill starts is forked, too
        used.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": Twin})  # type: ignore[attr-defined]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    sys.argv = [module, *words]
    return (command if module == "koordlet" else load)(words)


class Twin:
    """As much of `subprocess.Popen` of `python -m MODULE WORDS` as drills and loads use, forked from this process."""

    def __init__(
        self,
        words: list[str],
        *,
        stdin: int,
        stdout: int | IO[bytes],
        preexec_fn: Callable[[], None],
        stderr: IO[bytes] | None = None,
        **_: Any,
    ) -> None:
        self.returncode: int | None = None
        self.stdin = self.stdout = None
        if stdin == subprocess.PIPE:
            theirs, ours = os.pipe()
            self.stdin = os.fdopen(ours, "w", 1)
        else:
            theirs = os.open(os.devnull, os.O_RDONLY)
        if isinstance(stdout, int):
            back, out = os.pipe()
            self.stdout = os.fdopen(back)
        else:
            out = os.dup(stdout.fileno())
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.setpgid(0, 0)
                preexec_fn()
                os.dup2(theirs, 0)
                os.dup2(out, 1)
                if stderr is not None:
                    os.dup2(stderr.fileno(), 2)
                sys.stdin = os.fdopen(0, closefd=False)
                code = _become(words[2], words[3:])
                sys.stdout.flush()
            except BaseException:
                traceback.print_exc()
            finally:  # not a step further: what the parent had begun around this is the parent's to end
                os._exit(code)
        os.close(theirs)
        os.close(out)

    def poll(self, options: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        end_s = time.monotonic() + (0.0 if timeout is None else timeout)
        while timeout is not None and self.poll() is None:
            if time.monotonic() > end_s:
                raise subprocess.TimeoutExpired("koordlet", timeout)
            time.sleep(0.02)
        return self.poll(0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
