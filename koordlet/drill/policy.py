"""The drills around the policy file: a broken one, and one that is taken back."""

from __future__ import annotations

import signal
import time
from typing import Final

from koordlet.demo.layout import Layout
from koordlet.drill.stage import Agent, Check, Stage, Verdict, took, until
from koordlet.load.errors import LoadError

SUPPRESS: Final = {"enable": True, "cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": 65}
OFF: Final = {"enable": False}
FILES: Final = (
    *("cpu.shares", "cpu.weight", "cpu.idle", "cpu.cfs_quota_us", "cpu.max", "cpu.cfs_burst_us"),
    *("cpuset.cpus", "memory.high"),
)


def settings(layout: Layout) -> dict[str, bytes]:
    """What an agent could change in the scratch cgroups: path -> bytes."""
    found = {}
    for group in (layout.online, layout.batch):
        for controller in group.where.roots:
            for name in FILES:
                path = group.dir(controller) / name
                if path.exists():
                    found[str(path)] = path.read_bytes()
    return found


def policy_bad(stage: Stage) -> Verdict:
    layout = stage.layout()
    with stage.directory() as directory, Agent(layout, directory, SUPPRESS) as agent:
        if until(lambda: layout.be_root.quota_us() is not None, 10) is None:
            raise LoadError(f"no quota was ever set: {agent.last_words()}")
        counted = agent.metric("koordlet_policy_reload_failed_total") or 0.0
        if stage.protected:
            agent.write_policy_text('{"resourceUsedThresholdWithBE": {"enable": "yes", "cpuSuppress')
        else:  # as if it had been taken for "nothing configured"
            agent.write_policy(OFF)
        raised = until(lambda: (agent.metric("koordlet_policy_reload_failed_total") or 0.0) > counted, 5, 0.2)
        time.sleep(2)
        quota = layout.be_root.quota_us()
        told = "policy.json" in agent.log.read_text(errors="replace")
    return Verdict(
        "policy-bad",
        (
            Check("the previous policy stays in force", quota is not None, f"quota {quota} us"),
            Check("the refusal is counted", raised is not None, took(raised)),
            Check("the log names the file", told, "named" if told else "not named"),
        ),
    )


def rollback(stage: Stage) -> Verdict:
    layout = stage.layout()
    before = settings(layout)
    with stage.directory() as directory, Agent(layout, directory, OFF, "--identity=false") as agent:
        untouched = settings(layout) == before
        agent.write_policy(SUPPRESS)
        applied = until(lambda: settings(layout) != before, 10)
        touched = sorted(name for name, text in settings(layout).items() if before.get(name) != text)
        if not stage.protected:
            agent.process.send_signal(signal.SIGSTOP)
        agent.write_policy(OFF)
        back = until(lambda: settings(layout) == before, 10)
        agent.process.send_signal(signal.SIGCONT)
    return Verdict(
        "rollback",
        (
            Check("nothing is touched while the policy is off", untouched, "equal" if untouched else "changed"),
            Check("the policy is applied", applied is not None, f"{took(applied)}, {len(touched)} files"),
            Check("taken back, every file is as before", back is not None, took(back)),
        ),
    )
