"""The `koordlet` command: finds the subcommand and runs it. Nothing heavy is imported before that.

Exit codes: 0 done, 1 it failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Final

COMMANDS: Final = {
    "run": "run the agent (every flag of the reference's koordlet; --top shows it at work)",
    "check": "what this machine can do, and what to do about each gap; needs no agent",
    "status": "mode, sources, strategies, values held and faults of the running agent",
    "top": "live view: node, QoS classes, pods, best-effort allowance and why",
    "explain": "why a workload's kernel values are what they are",
    "report": "longer answers: interference between online and best-effort work",
    "pins": "move declared workloads' CPUs nearer together, when you ask for it",
    "undo": "put every kernel value back that an agent left behind",
    "drill": "provoke what it protects from, on scratch cgroups, and see that it holds",
    "demo": "see it work on this machine with a load of its own",
}


def main(argv: list[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `koordlet status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as stop:  # argparse
        return stop.code if isinstance(stop.code, int) else 1


def version() -> str:
    """Of the installed package; "unknown" in a bare source tree."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("koordlet")
    except PackageNotFoundError:
        return "unknown"


def _dispatch(words: list[str]) -> int:
    if not words:
        sys.stderr.write(_help())
        return 2
    first, rest = words[0], words[1:]
    if first in ("-h", "-help", "--help", "help"):
        if first == "help" and rest and rest[0] in COMMANDS:
            return _run(rest[0], ["--help"])
        sys.stdout.write(_help())
        return 0
    if first in ("-version", "--version", "version"):
        sys.stdout.write(f"koordlet {version()}\n")
        return 0
    if first.startswith("-"):  # compat: the reference's container command has flags only
        return _run("run", words)
    if first in COMMANDS:
        return _run(first, rest)
    from difflib import get_close_matches

    near = get_close_matches(first, COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {' '.join(COMMANDS)}"
    sys.stderr.write(f"koordlet: no command {first[:80]!r}; {hint}\n")
    return 2


def _run(command: str, words: list[str]) -> int:
    if command == "demo":
        from koordlet.demo import main as demo

        return int(demo(words))
    return int(import_module(f"koordlet.cli.{command}").main(words))


def _help() -> str:
    rows = "\n".join(f"  {name:<8} {text}" for name, text in COMMANDS.items())
    return f"""\
usage: koordlet COMMAND [options]
       koordlet -FLAG...          the same as: koordlet run -FLAG...

Lends the idle CPU of this machine to best-effort work, takes it back when it is needed, and can undo every write.

commands:
{rows}

  koordlet COMMAND --help         options of one command
  koordlet --version

first steps:
  koordlet check                  what works here?
  koordlet demo                   a first look, needs nothing prepared
  koordlet run --observe --top    decide on real workloads, but write nothing
"""
