"""Where the threads of a process really run, looked at again and again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from tests.live.node import Agent

LOOK_S = 0.02
"""An emulated guest has little to give: who looks without a pause takes it from the agent."""


def running_on(pid: int) -> set[int]:
    """CPU of each running thread, field 39 of /proc/<pid>/task/<tid>/stat; a sleeper's is where it ran long ago."""
    seen = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] == "R":
            seen.add(int(fields[36]))
    return seen


def ticks(agent: Agent) -> int:
    return int(agent.ask("/v1/status")["tick"]["ticks"])


def during(agent: Agent, count: int) -> Iterator[None]:
    """Again and again until that many more of its ticks have ended."""
    last, ends_s = ticks(agent) + count, time.monotonic() + 60
    while ticks(agent) < last:
        assert time.monotonic() < ends_s, f"no {count} ticks in a minute\n{agent.text()}"
        for _ in range(10):  # a question costs the agent more than a look costs us
            yield
            time.sleep(LOOK_S)
