"""Agents forked from a process that has them imported already, for the kernel lab.

Under emulation nearly all of an agent's start is Python reading its modules, and each live test starts one. Outside the
lab a live test runs the command itself. By itself this file is the parent of those agents.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

PRELOADED = ("koordlet.cli.run", "koordlet.daemon")
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

    def __init__(self, words: list[str], output: int) -> None:
        if Forked.parent is None:
            Forked.parent = Parent()
        self._parent = Forked.parent
        pid = self._parent.ask({"start": words}, (output,))
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
    """Until the other end is closed. A forked agent leaves by SystemExit, so that the interpreter ends as usual."""
    from koordlet.cli import main

    for name in PRELOADED:
        __import__(name)
    while True:
        message, fds, _, _ = socket.recv_fds(questions, MAX_WORDS, 1)
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
                os.dup2(fds[0], 2)
                os.close(fds[0])
                sys.argv = ["koordlet", *question["start"]]
                sys.exit(main(question["start"]))
            os.close(fds[0])
        questions.send(json.dumps(answer).encode())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
