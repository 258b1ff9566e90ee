"""`Stage`: scratch cgroups and a private agent for one drill; `Verdict`: what came out."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordlet.demo.agent import command, spawn
from koordlet.demo.layout import Layout, make_layout
from koordlet.demo.options import TreeKind
from koordlet.load.cgroups import ScratchTree
from koordlet.load.errors import LoadError
from koordlet.model.places import SOCKET_FILE

START_S: Final = 180.0
"""Of an agent that lives: Python alone takes a minute to start where the machine is emulated and best effort has it."""
TELL_EVERY_S: Final = 10.0
TAKEN_S: Final = 30.0
STOP_S: Final = 60.0
TOO_BUSY: Final = "the machine is so busy that best effort has no CPU to give back"


@dataclass(frozen=True, slots=True)
class Check:
    """measured: the number and its unit, for people."""

    name: str
    passed: bool
    measured: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """fault: why the drill could not be run to its end, "" otherwise; then it has not passed."""

    drill: str
    checks: tuple[Check, ...]
    fault: str = ""

    @property
    def passed(self) -> bool:
        return not self.fault and bool(self.checks) and all(check.passed for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        checks = [{"name": c.name, "passed": c.passed, "measured": c.measured} for c in self.checks]
        return {"drill": self.drill, "passed": self.passed, "fault": self.fault, "checks": checks}

    def text(self) -> str:
        lines = [f"{self.drill}: {'passed' if self.passed else 'FAILED'}"]
        lines += [f"  {'ok ' if c.passed else 'NOT'} {c.name}: {c.measured}" for c in self.checks]
        return "\n".join([*lines, *([f"  {self.fault}"] if self.fault else [])])


@dataclass(frozen=True, slots=True)
class Stage:
    """protected: False takes away what the drill checks, so that it must fail."""

    tree: ScratchTree
    seconds: int
    protected: bool = True

    def layout(self) -> Layout:
        return make_layout(self.tree, TreeKind.SIBLINGS)

    @contextmanager
    def directory(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="koordlet-drill-") as name:
            yield Path(name)


class Agent:
    """A private agent. threshold: its policy's section; words: more flags."""

    def __init__(self, layout: Layout, directory: Path, threshold: dict[str, Any], *words: str) -> None:
        self.directory = directory
        self._arguments = [*command(layout, directory, threshold), *words]
        self.log = directory / "log"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as stderr:
            said = stderr.tell()  # by the run before, which was ready, too
            process = spawn(self._arguments, stderr)
        begun_s = told_s = time.monotonic()
        while b"] ready" not in self.log.read_bytes()[said:]:
            now_s = time.monotonic()
            if process.poll() is not None or now_s - begun_s > START_S:
                ended = process.returncode
                how = f"took over {START_S:.0f} s" if ended is None else f"ended with code {ended}"
                process.kill()
                process.wait()
                raise LoadError(f"the agent did not start, it {how}: {self.last_words()}")
            if now_s - told_s >= TELL_EVERY_S:
                told_s = now_s
                print(
                    f"koordlet drill: waiting for the agent to start, {now_s - begun_s:.0f} s so far",
                    file=sys.stderr,
                    flush=True,
                )
            time.sleep(0.02)
        return process

    def write_policy(self, threshold: dict[str, Any]) -> None:
        self.write_policy_text(json.dumps({"resourceUsedThresholdWithBE": threshold}))

    def change_policy(self, threshold: dict[str, Any]) -> None:
        """Returns once it is in force. Raises LoadError when it is not soon."""
        before = self._loaded()
        self.write_policy(threshold)
        if until(lambda: self._loaded() > before, TAKEN_S, 0.05) is None:
            raise LoadError(f"the policy was not taken: {self.last_words()}")

    def _loaded(self) -> int:
        """How often it took a new policy, by its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return sum("config.loaded" in line and "policy.json" in line for line in lines)

    def write_policy_text(self, text: str) -> None:
        """Whole, as an editor that renames would."""
        (self.directory / ".policy").write_text(text)
        (self.directory / ".policy").rename(self.directory / "policy.json")

    def restart(self) -> None:
        self.process = self._start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def audit(self) -> list[dict[str, Any]]:
        """Its records so far, oldest first."""
        files = sorted((self.directory / "audit").glob("audit*"), key=lambda path: path.stat().st_mtime)
        lines = [line for file in files for line in file.read_text(errors="replace").splitlines()]
        return [json.loads(line) for line in lines if line.endswith("}")]

    def metric(self, name: str) -> float | None:
        """Value of a metric without labels, from the agent's own socket."""
        for line in self._get("/internal-metrics").splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        return None

    def _get(self, path: str) -> str:
        connection = http.client.HTTPConnection("localhost", timeout=5)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(5)
        try:
            connection.sock.connect(str(self.directory / "run" / SOCKET_FILE))
            connection.request("GET", path)
            return connection.getresponse().read().decode("utf-8", "replace")
        except OSError as error:
            raise LoadError(f"the agent does not answer: {error}") from error
        finally:
            connection.close()

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").strip().splitlines()[-6:]) or "it said nothing"

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()


def until(seen: Callable[[], bool], timeout_s: float, poll_s: float = 0.01) -> float | None:
    """Seconds until it was seen, None when it was not in time."""
    begun_s = time.monotonic()
    while not seen():
        if time.monotonic() - begun_s > timeout_s:
            return None
        time.sleep(poll_s)
    return time.monotonic() - begun_s


def took(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.2f} s"
