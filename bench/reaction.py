"""How long from the start of an online surge to the lower batch limit in the kernel: the demo's surges, more of them.

    python bench/reaction.py [--surges 30] [--tree siblings|kubelet] [--output text|json]

Exit code 1 when a target is missed. README.md says how the numbers come about and what would make them invalid.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from koordlet.demo.options import TreeKind
from koordlet.demo.reaction import measure_reaction
from koordlet.demo.session import guarded, say, session
from koordlet.demo.table import reaction_json, reaction_text

MOST_P50_MS = 50
MOST_P99_MS = 150
RECOVERED_SHARE = 0.9
"""A surge begins from nearly the full batch limit, as in a calm hour."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--surges", type=int, default=30)
    parser.add_argument("--tree", type=TreeKind, choices=list(TreeKind), default=TreeKind.SIBLINGS)
    parser.add_argument("--output", choices=["text", "json"], default="text")
    args = parser.parse_args()
    return guarded(lambda: measure(args.tree, args.surges, args.output == "json"))


def measure(kind: TreeKind, surges: int, as_json: bool) -> int:
    before = os.getloadavg()
    with session() as tree:
        reaction = measure_reaction(tree, kind, surges, say, RECOVERED_SHARE)
    p50, p99 = reaction.quantile_ms(0.5), reaction.quantile_ms(0.99)
    met = not reaction.missed and p50 is not None and p99 is not None and p50 <= MOST_P50_MS and p99 <= MOST_P99_MS
    if as_json:
        found = {"load_average_before": before, "tree": kind, **reaction_json(reaction), "met": met}
        print(json.dumps(found, indent=1))
    else:
        print(reaction_text(reaction))
        print(
            f"{'met   ' if met else 'MISSED'}  p50 <= {MOST_P50_MS} ms, p99 <= {MOST_P99_MS} ms, every surge answered"
        )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
