"""What koordlet's default is worth to an online service, and what batch still gets: the demo's phases, repeated.

    python bench/protection.py [--rounds 5] [--phase-seconds 10] [--tree siblings|kubelet] [--output table|json]

Exit code 1 when a target is missed. README.md says how the numbers come about and what would make them invalid.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass

from koordlet.demo.options import Options, TreeKind
from koordlet.demo.phase import Phase
from koordlet.demo.rounds import Outcome, run_rounds
from koordlet.demo.session import guarded, say, session
from koordlet.demo.table import print_table, to_json
from koordlet.load.batch import BatchKind

MOST_TO_ALONE = 1.10
MOST_TO_UNMANAGED = 0.10
LEAST_IDLE_SHARE = 0.85


@dataclass(frozen=True)
class Verdict:
    target: str
    value: float
    met: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--phase-seconds", type=float, default=10)
    parser.add_argument("--tree", type=TreeKind, choices=list(TreeKind), default=TreeKind.SIBLINGS)
    parser.add_argument("--output", choices=["table", "json"], default="table")
    args = parser.parse_args()
    options = Options(rounds=args.rounds, phase_s=args.phase_seconds, tree=args.tree)
    return guarded(lambda: measure(options, args.output == "json"))


def measure(options: Options, as_json: bool) -> int:
    before = os.getloadavg()
    with session() as tree:
        outcome = run_rounds(tree, options, say)
    verdicts = judge(outcome)
    if as_json:
        found = to_json(options, outcome, None)
        print(json.dumps({"load_average_before": before, **found, "targets": [asdict(v) for v in verdicts]}, indent=1))
    else:
        print_table(options, outcome)
        for verdict in verdicts:
            print(f"{'met   ' if verdict.met else 'MISSED'}  {verdict.target}: {verdict.value:.3f}")
    return 0 if all(verdict.met for verdict in verdicts) else 1


def judge(outcome: Outcome) -> list[Verdict]:
    """Each target with the median that was measured."""
    verdicts = []
    for row in outcome.rows:
        if row.phase is not Phase.KOORDLET or row.idle_share is None or row.to_unmanaged is None:
            continue
        verdicts.append(_most(f"{row.antagonist}: online p99 <= {MOST_TO_ALONE} of alone", row.to_alone, MOST_TO_ALONE))
        if row.antagonist is BatchKind.STORM:
            target = f"{row.antagonist}: online p99 <= {MOST_TO_UNMANAGED} of unmanaged"
            verdicts.append(_most(target, row.to_unmanaged, MOST_TO_UNMANAGED))
        target = f"{row.antagonist}: batch gets >= {LEAST_IDLE_SHARE} of the idle CPU"
        verdicts.append(Verdict(target, row.idle_share, row.idle_share >= LEAST_IDLE_SHARE))
    return verdicts


def _most(target: str, value: float, limit: float) -> Verdict:
    return Verdict(target, value, value <= limit)


if __name__ == "__main__":
    sys.exit(main())
