"""Run the real agent on the demo's cgroups, and know when it has taken hold of them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from koordlet.demo.layout import Layout
from koordlet.demo.options import TreeKind
from koordlet.load.cgroups import Group
from koordlet.load.child import before_exec, python_env
from koordlet.load.errors import LoadError

READY_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 10.0
SUPPRESS_PERCENT: Final = 65
SUPPRESS: Final = {"enable": True, "cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": SUPPRESS_PERCENT}
"""The suppress loop with the reference's default threshold; without it the agent only gives identity."""


@contextmanager
def koordlet(layout: Layout, suppress: bool = False) -> Iterator[None]:
    """The agent beside the demo until the context is left.

    Enters once the batch side has its identity (and a quota with suppress) in the kernel. Raises LoadError with the
    agent's last words when that does not happen within READY_TIMEOUT_S.
    """
    with tempfile.TemporaryDirectory(prefix="koordlet-demo-") as name:
        directory = Path(name)
        log = directory / "log"
        with log.open("wb") as stderr:
            process = spawn(command(layout, directory, SUPPRESS if suppress else {"enable": False}), stderr)
        try:
            _wait_until_held(layout, suppress, process, log)
            yield
            if process.poll() is not None:
                raise LoadError(f"the agent ended in the middle of a phase: {_tail(log)}")
        finally:
            _stop(process)


@contextmanager
def stand_in(layout: Layout) -> Iterator[None]:
    """Writes what the agent would, for tests of the demo itself."""
    _identity(layout)[0](layout.be_root)
    yield


def spawn(arguments: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """An agent that ends with this process; what it says goes to `log`."""
    return subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=python_env(),
        process_group=0,
        preexec_fn=before_exec(),
    )


def command(layout: Layout, directory: Path, threshold: dict[str, Any]) -> list[str]:
    """A private agent with that section of a policy, its files in `directory`.

    Every file that it would look for in /etc is named, so the machine's own settings do not mix in.
    """
    (directory / "policy.json").write_text(json.dumps({"resourceUsedThresholdWithBE": threshold}))
    (directory / "node.json").write_text(json.dumps({"kind": "Node"}))
    return [
        *(sys.executable, "-m", "koordlet", "run", "--mode", "standalone", "-addr=127.0.0.1:0"),
        *layout.agent_arguments(directory),
        *("--policy", str(directory / "policy.json"), "--node", str(directory / "node.json")),
        *("--state-dir", str(directory / "state"), "--run-dir", str(directory / "run")),
        *("--audit-log-dir", str(directory / "audit")),
    ]


def _identity(layout: Layout) -> tuple[Callable[[Group], None], Callable[[Group], bool]]:
    """How to give the batch side its identity, and how to see that it has it."""
    if layout.kind is TreeKind.SIBLINGS and layout.be_root.idle() is not None:
        return (lambda group: group.set_idle(1)), (lambda group: group.idle() == 1)
    return (lambda group: group.set_shares(2)), (lambda group: group.weight() <= 2)


def _wait_until_held(layout: Layout, suppress: bool, process: subprocess.Popen[bytes], log: Path) -> None:
    has_identity = _identity(layout)[1]
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not (has_identity(layout.be_root) and (not suppress or layout.be_root.quota_us() is not None)):
        if process.poll() is not None:
            raise LoadError(f"the agent ended with code {process.returncode}: {_tail(log)}")
        if time.monotonic() > deadline_s:
            raise LoadError(f"the agent has not taken hold of {layout.be_root.path} in 10 s: {_tail(log)}")
        time.sleep(0.02)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return "\n".join(lines[-6:]) or "it said nothing"
