"""`koordlet drill`: provoke on purpose what the agent protects from, and see that it does (spec/ledger 6.9).

Each drill runs a private agent on scratch cgroups of its own, injects, checks its pass condition and prints a verdict
with the numbers. Bounded in time and amount; refused on a node that is under pressure already.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Final

from koordlet.demo.session import guarded, session
from koordlet.drill import crash, policy, stale, surge
from koordlet.drill.node import under_pressure
from koordlet.drill.stage import Stage, Verdict
from koordlet.load.errors import LoadError

DRILLS: Final[dict[str, tuple[Callable[[Stage], Verdict], str]]] = {
    "cpu-surge": (
        surge.cpu_surge,
        "online load to 90 % of the node: best effort gives CPUs back, and gets them again",
    ),
    "mem-surge": (surge.mem_surge, "online memory above the policy's line: best effort yields before the kernel kills"),
    "stale-metrics": (
        stale.stale_metrics,
        "figures stop coming: limits hold, then the safe floor; nobody is evicted",
    ),
    "agent-kill": (crash.agent_kill, "SIGKILL of the agent: limits stay, the next one takes over and restores"),
    "policy-bad": (policy.policy_bad, "an invalid policy file: the previous one stays in force, and it is counted"),
    "rollback": (policy.rollback, "a policy applied and taken back: every touched file is as before"),
}
"""Name -> (drill, what it shows)."""


def main(argv: Sequence[str]) -> int:
    """0: passed; 1: failed or not possible here; 2: refused or not confirmed."""
    parser = argparse.ArgumentParser(
        prog="koordlet drill",
        description="Provoke what the agent protects from, on scratch cgroups with an agent of its own (root).",
        epilog="\n".join(f"  {name:14} {about}" for name, (_, about) in DRILLS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("drill", choices=list(DRILLS))
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--output", choices=["text", "json"], default="text", help="(text)")
    parser.add_argument("--seconds", type=int, choices=range(5, 121), default=20, metavar="5..120", help="of load (20)")
    # For tests of the drills themselves: each must fail without the protection that it checks.
    parser.add_argument("--without-protection", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--whatever-the-load", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    reason = "" if options.whatever_the_load else under_pressure()
    if reason:
        print(f"koordlet drill: refused, {reason}; try again when the node is quieter", file=sys.stderr)
        return 2
    run, about = DRILLS[options.drill]
    if not options.yes and not _confirmed(options.drill, about):
        return 2
    return guarded(lambda: _run(run, options))


def _run(run: Callable[[Stage], Verdict], options: argparse.Namespace) -> int:
    with session() as tree:
        try:
            verdict = run(Stage(tree, options.seconds, protected=not options.without_protection))
        except LoadError as error:
            verdict = Verdict(options.drill, (), str(error))
    print(json.dumps(verdict.as_json(), indent=1) if options.output == "json" else verdict.text())
    return 0 if verdict.passed else 1


def _confirmed(name: str, about: str) -> bool:
    if not sys.stdin.isatty():
        print(f"koordlet drill: {name} puts load on this node; say --yes to run it unasked", file=sys.stderr)
        return False
    print(f"{name}: {about}.\nIt puts load on this node for up to two minutes. Go on? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
