"""`koordlet demo`: show on this machine what protects an online service from batch work, and what it costs.

Runs as root in cgroups of its own and leaves nothing behind. Nothing else on the machine is changed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from koordlet.demo.options import Options, parse
from koordlet.demo.picture import draw, missing_library
from koordlet.demo.reaction import Reaction, measure_reaction
from koordlet.demo.rounds import Outcome, run_rounds
from koordlet.demo.table import print_text, to_json
from koordlet.load.cgroups import scratch_tree
from koordlet.load.errors import LoadError

CGROUP: Final = "koordlet-demo"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asked the demo to end."""


def main(argv: Sequence[str]) -> int:
    """Run the demo; 0 when it ran, 1 when it cannot run here, 128 + signal when it was stopped."""
    options = parse(argv)
    try:
        with stop_on_signals():
            outcome, reaction = run(options)
    except Stopped as stopped:
        say("stopped; the demo's cgroups and processes are gone")
        return 128 + int(stopped.args[0])
    except LoadError as error:
        say(str(error))
        return 1
    if options.json:
        print(json.dumps(to_json(options, outcome, reaction), indent=1))
    else:
        print_text(options, outcome, reaction)
    return 0


def run(options: Options) -> tuple[Outcome, Reaction | None]:
    """Measure everything in a scratch tree, and draw the picture. Raises LoadError when this machine cannot."""
    if os.geteuid() != 0:
        raise LoadError("the demo makes cgroups of its own and needs root: sudo koordlet demo")
    if options.picture is not None and missing_library():
        say("no timeline picture: Pillow is not installed (pip install 'koordlet[demo]')")
    with scratch_tree(CGROUP) as tree:
        outcome = run_rounds(tree, options, say)
        reaction = None
        if options.surges and not options.stand_in:
            reaction = measure_reaction(tree, options.tree, options.surges, say)
    if options.picture is not None and not missing_library():
        try:
            draw(options, outcome, reaction, options.picture)
            say(f"timeline of the first round: {options.picture}")
        except OSError as error:
            say(f"no timeline picture: {error}")
    return outcome, reaction


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into `Stopped`; further ones must not disturb the cleaning up."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say(line: str) -> None:
    """Progress and complaints go to standard error."""
    print(f"koordlet demo: {line}", file=sys.stderr, flush=True)
