"""`koordlet pins defragment`: place the declared workloads' CPUs anew, nearer together. Only ever on request."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

from koordlet.cli import words
from koordlet.cli.client import AgentError, ask_ok
from koordlet.cli.screen import add_output, add_socket, console, fail, indent, parser, print_json, table

WAIT_S: Final = 30.0
"""For the agent's next tick."""
LOOK_S: Final = 0.2

ABOUT: Final = """\
CPUs that declared workloads hold stay theirs for ever, so after many have come and gone the free ones lie scattered.
`koordlet pins defragment` has the agent place everybody once more, shows who would move and what that gains, and with
your consent lets the agent do it, all in one tick. Nobody moves when nothing is gained. A workload's memory stays where
it is unless the agent runs with -cpuset-mems=migrate.
"""
MEASURES: Final = (
    ("missing_cpus", "CPUs asked for and not held"),
    ("spanned_nodes", "NUMA nodes touched, all workloads together"),
    ("split_cores", "cores held in part by work that wants whole ones"),
    ("free_cores", "whole free cores on the emptiest NUMA node"),
)


def main(argv: list[str]) -> int:
    options = parser("pins", ABOUT)
    options.add_argument("action", choices=("defragment",))
    add_socket(options)
    options.add_argument("--dry-run", action="store_true", help="show the plan, move nobody")
    options.add_argument("--yes", action="store_true", help="do not ask")
    add_output(options)
    given = options.parse_args(argv)
    try:
        return _defragment(given)
    except AgentError as error:
        return fail("pins", error)


def _defragment(given: Any) -> int:
    plan: dict[str, Any] = ask_ok(given.socket, "/v1/pins")
    as_json = given.output == "json"
    if not plan["moves"] or given.dry_run:
        return _shown(plan, as_json, applied=False)
    if not given.yes and not sys.stdin.isatty():
        number = words.count(len(plan["moves"]), "workload")
        return fail("pins", f"{number} would move; say --yes to do it without asking, --dry-run to see the plan", 2)
    if not given.yes:
        _print(plan, stderr=True)
        sys.stderr.write(f"Move {words.count(len(plan['moves']), 'workload')}? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return fail("pins", "nobody was moved")
    ask_ok(given.socket, "/v1/pins/defragment", method="POST", plan=plan["id"])
    if error := _wait(given.socket, plan["id"]):
        return fail("pins", f"nobody was moved: {error}")
    return _shown(plan, as_json, applied=True)


def _wait(socket_path: str, plan_id: str) -> str:
    """Until the agent has done it; why it has not, "" when it has. Raises AgentError."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        last = ask_ok(socket_path, "/v1/pins")["last"]
        if last is not None and last["id"] == plan_id:
            return str(last["error"])
        time.sleep(LOOK_S)
    raise AgentError(f"the agent has not answered for {WAIT_S:g} s; koordlet top --cpus shows who holds what")


def _shown(plan: dict[str, Any], as_json: bool, *, applied: bool) -> int:
    if as_json:
        print_json({"applied": applied, **{name: plan[name] for name in ("id", "moves", "before", "after")}})
        return 0
    _print(plan)
    if applied:
        print(f"{words.count(len(plan['moves']), 'workload')} moved")
    return 0


def _print(plan: dict[str, Any], *, stderr: bool = False) -> None:
    screen = console(stderr=stderr)
    if not plan["moves"]:
        screen.print("Nothing is gained by moving anybody.")
        return
    made = table("WORKLOAD", "FROM", "TO", wrap=("WORKLOAD", "FROM", "TO"))
    for move in plan["moves"]:
        made.add_row(move["workload"], move["from"] or "shared", move["to"] or "shared")
    screen.print(indent(made))
    gains = table("", "NOW", "THEN", right=("NOW", "THEN"))
    for name, text in MEASURES:
        if plan["before"][name] != plan["after"][name]:
            gains.add_row(text, str(plan["before"][name]), str(plan["after"][name]))
    screen.print(indent(gains))
