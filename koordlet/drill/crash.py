"""The drill in which the agent is killed while it holds limits."""

from __future__ import annotations

import shutil
import time

from koordlet.demo.layout import cpu_count
from koordlet.drill.policy import SUPPRESS, settings
from koordlet.drill.stage import Agent, Check, Stage, Verdict, took, until
from koordlet.load import child
from koordlet.load.batch import BatchKind, typical
from koordlet.load.errors import LoadError


def agent_kill(stage: Stage) -> Verdict:
    layout = stage.layout()
    before = settings(layout)
    with (
        stage.directory() as directory,
        child.start(typical(BatchKind.COMPUTE, 60, cpu_count()), layout.batch.procs_files) as batch,
        Agent(layout, directory, SUPPRESS) as agent,
    ):
        batch.go(time.monotonic_ns())
        if until(lambda: layout.be_root.quota_us() is not None, 10) is None:
            raise LoadError(f"no quota was ever set: {agent.last_words()}")
        time.sleep(1)
        agent.kill()
        left = layout.be_root.quota_us()
        if not stage.protected:  # the journal is what knows the originals
            shutil.rmtree(directory / "state")
        agent.restart()
        again = until(lambda: layout.be_root.quota_us() is not None, 10)
        agent.stop()
        after = settings(layout)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return Verdict(
        "agent-kill",
        (
            Check("limits outlive the agent", left is not None, f"quota {left} us"),
            Check("the next agent holds them again", again is not None, took(again)),
            Check("a clean stop restores every file", not changed, f"{len(changed)} differ {changed[:3]}"),
        ),
    )
