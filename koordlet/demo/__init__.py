"""`koordlet demo`: show on this machine what protects an online service from batch work, and what it costs.

Runs as root in cgroups of its own and leaves nothing behind. Nothing else on the machine is changed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from koordlet.demo.options import Options, parse
from koordlet.demo.picture import draw, missing_library
from koordlet.demo.reaction import measure_reaction
from koordlet.demo.rounds import run_rounds
from koordlet.demo.session import guarded, say, session
from koordlet.demo.table import print_table, reaction_text, to_json


def main(argv: Sequence[str]) -> int:
    """Run the demo; 0 when it ran, 1 when it cannot run here, 128 + signal when it was stopped."""
    options = parse(argv)
    return guarded(lambda: run(options))


def run(options: Options) -> int:
    """Measure in scratch cgroups, print, draw. Raises LoadError when this machine cannot."""
    reaction = None
    with session() as tree:
        if options.picture is not None and missing_library():
            say("no timeline picture: Pillow is not installed (pip install 'koordlet[demo]')")
        outcome = run_rounds(tree, options, say)
        if not options.json:
            print_table(options, outcome)
        if options.surges and not options.stand_in:
            reaction = measure_reaction(tree, options.tree, options.surges, say)
    if options.json:
        print(json.dumps(to_json(options, outcome, reaction), indent=1))
    elif reaction is not None:
        print(reaction_text(reaction))
    if options.picture is not None and not missing_library():
        try:
            draw(options, outcome, reaction, options.picture)
            say(f"timeline of the first round: {options.picture}")
        except OSError as error:
            say(f"no timeline picture: {error}")
    return 0
