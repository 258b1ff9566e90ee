"""The NRI plugin of the lab (plugin/main.go), as a test handles it: rules in, events out."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.labs import binaries

if TYPE_CHECKING:
    from tests.labs.runtime.lab import Lab

WAIT_S = 30


class Plugin:
    """A running plugin process. `events` is its log: dicts with `event`, and `pod`, `container` as protobuf's JSON."""

    def __init__(self, lab: Lab, name: str, index: str, retry_ms: int, rules: dict[str, Any]) -> None:
        number = len(list(lab.work.glob("plugin-*.rules")))
        self.path = lab.work / f"plugin-{number}-{index}-{name}"
        self._rules = self.path.with_suffix(".rules")
        self.rules(**rules)
        words = ["-socket", str(lab.nri_socket), "-name", name, "-idx", index, "-retry", f"{retry_ms}ms"]
        words += ["-log", str(self.path.with_suffix(".events")), "-rules", str(self._rules)]
        self.process = lab.spawn([str(lab.plugin_binary), *words], self.path.with_suffix(".log"))

    @staticmethod
    def binary() -> Path:
        return binaries.program(Path(__file__).with_name("plugin"), "nri")

    def rules(self, **by_event: dict[str, Any]) -> None:
        """What it does from now on, e.g. CreateContainer={"sleep_ms": 3000}; see type rule in main.go."""
        new = self._rules.with_suffix(".new")
        new.write_text(json.dumps(by_event))
        new.rename(self._rules)

    @property
    def events(self) -> list[dict[str, Any]]:
        log = self.path.with_suffix(".events")
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def names(self, pod: str = "") -> list[str]:
        """Names of the events, of one pod if given."""
        return [e["event"] for e in self.events if not pod or e.get("pod", {}).get("name") == pod]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["event"] == event]

    def wait(self, event: str, count: int = 1) -> dict[str, Any]:
        """The count-th event of that name, waited for."""
        deadline = time.monotonic() + WAIT_S
        while len(found := self.of(event)) < count:
            if time.monotonic() > deadline:
                text = self.path.with_suffix(".log").read_text(errors="replace")[-2000:]
                raise TimeoutError(f"no event {event} number {count}; there were {self.names()}\n{text}")
            time.sleep(0.01)
        return found[count - 1]

    def freeze(self) -> None:
        """SIGSTOP, and wait until it has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def cpu(**values: int) -> dict[str, Any]:
    """The rule that adjusts a new container's cpu.shares, quota, period."""
    return {"adjust": {"linux": {"resources": {"cpu": {name: {"value": value} for name, value in values.items()}}}}}
