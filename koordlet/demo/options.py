"""What the demo was asked to do: `koordlet demo`'s options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from koordlet.load.batch import BatchKind

EPILOG = """\
phases: the online service alone; beside the batch job with equal weights; with the batch job under a quota of 60 %
of the node; under koordlet with its default settings. Then, with the suppress loop on (cfsQuota, 65 %), how long
after the start of an online surge the kernel has the lower batch limit.
Everything runs in cgroups named koordlet-demo-<pid>, which are removed at the end.
"""


class TreeKind(StrEnum):
    SIBLINGS = "siblings"  # two declared cgroups side by side, as on bare metal
    KUBELET = "kubelet"  # pods in kubepods/burstable and kubepods/besteffort


@dataclass(frozen=True, slots=True)
class Options:
    """picture: None for none. stand_in: write koordlet's values ourselves instead of running it (for tests)."""

    rounds: int = 1
    phase_s: float = 5.0
    antagonists: tuple[BatchKind, ...] = (BatchKind.COMPUTE, BatchKind.STORM)
    tree: TreeKind = TreeKind.SIBLINGS
    json: bool = False
    picture: Path | None = Path("demo-timeline.png")
    surges: int = 10
    stand_in: bool = False


def parse(argv: Sequence[str]) -> Options:
    """Options from the command line; prints usage and raises SystemExit as argparse does."""
    parser = argparse.ArgumentParser(
        prog="koordlet demo",
        description="Show on this machine what protects an online service from batch work (root).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=_number(1, 100), default=1, metavar="N", help="rounds of all phases (1)")
    parser.add_argument(
        "--phase-seconds", type=_number(1, 600), default=5, metavar="N", help="measured time of a phase (5)"
    )
    parser.add_argument("--antagonist", choices=["compute", "storm", "both"], default="both", help="batch job (both)")
    parser.add_argument("--tree", type=TreeKind, choices=list(TreeKind), default=TreeKind.SIBLINGS, help="(siblings)")
    parser.add_argument("--reaction", type=_number(0, 1000), default=10, metavar="N", help="surges to time (10)")
    parser.add_argument("--output", choices=["text", "json"], default="text", help="(text)")
    parser.add_argument(
        "--picture", default="demo-timeline.png", metavar="PATH", help="timeline as PNG, '' for none (%(default)s)"
    )
    parser.add_argument("--stand-in", action="store_true", help=argparse.SUPPRESS)
    got = parser.parse_args(argv)
    kinds = (BatchKind.COMPUTE, BatchKind.STORM) if got.antagonist == "both" else (BatchKind(got.antagonist),)
    return Options(
        rounds=got.rounds,
        phase_s=got.phase_seconds,
        antagonists=kinds,
        tree=got.tree,
        json=got.output == "json",
        picture=Path(got.picture) if got.picture else None,
        surges=got.reaction,
        stand_in=got.stand_in,
    )


class _number:  # noqa: N801 - reads as a function in the table above, and argparse prints its name
    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def __call__(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = self.low - 1
        if not self.low <= value <= self.high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {self.low} to {self.high}")
        return value
