"""`koordlet status`: the running agent on one page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from koordlet.cli import words
from koordlet.cli.client import AgentError, ask_ok
from koordlet.cli.screen import add_output, add_socket, console, fail, indent, parser, print_json, sheet, table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

MAX_ROWS: Final = 10
VENDOR: Final = "needs an Anolis kernel"


def main(argv: list[str]) -> int:
    options = parser("status", "Mode, sources, strategies, values held and faults of the running agent.")
    add_socket(options)
    add_output(options)
    given = options.parse_args(argv)
    try:
        answer = ask_ok(given.socket, "/v1/status")
    except AgentError as error:
        return fail("status", error)
    if given.output == "json":
        print_json(answer)
    else:
        screen = console()
        for part in page(answer):
            screen.print(part)
    return 0


def page(answer: dict[str, Any]) -> list[RenderableType]:
    """The whole page, from the answer of /v1/status."""
    rows = sheet()
    node, tick = answer["node"], answer["tick"]
    rows.add_row("Agent", heading(answer))
    rows.add_row(
        "Loop",
        f"{words.count(tick['ticks'], 'tick')}, last took {tick['last_ms']:.1f} ms, {tick['overruns']} late, "
        f"woken early {words.count(tick['surges'], 'time')}",
    )
    rows.add_row("Node", f"{node['name'] or 'unnamed'}, {_node_cpu(answer)}, {_node_memory(answer)}")
    for root in answer["be_roots"]:
        rows.add_row("Best effort", allowance(root))
        if root["why"]:
            rows.add_row("", _dim(f"because {words.why(root['why'])}"))
    pods = answer["sources"]["pods"]
    rows.add_row(
        "Workloads",
        f"{pods['known']} known, {pods['active']} live, {pods['best_effort']} best effort, read {_ago(pods['age_s'])}",
    )
    at_rest = [one for one in answer["strategies"] if not (one["decisions"] or one["error"] or one["notes"])]
    for strategy in answer["strategies"]:
        if strategy not in at_rest:
            rows.add_row("Strategy", _strategy(strategy))
    if at_rest:
        rows.add_row("At rest", _dim(", ".join(one["name"] for one in at_rest)))
    rows.add_row("Values", _values(answer["knobs"]))
    parts: list[RenderableType] = [rows]
    bad = [row for row in answer["knobs"]["rows"] if row["state"] in ("failed", "unsupported")]
    if bad:
        parts += ["", _bold("Values that the kernel does not take"), indent(_failing(bad))]
    missing = [row for row in answer["capabilities"] if row["level"] == "unsupported"]
    if missing:
        names = [row["name"] for row in missing if VENDOR not in row["reason"]]
        if len(names) < len(missing):
            names.append(f"{len(missing) - len(names)} that only Anolis kernels have")
        parts += ["", _dim(f"Not on this machine: {', '.join(names)} (koordlet check says what to do)")]
    return parts


def heading(answer: dict[str, Any], more: str = "") -> Text:
    """`0.1.0, enforcing, 0.4 s ago`, and what is wrong. more: what else the first line says."""
    from rich.text import Text

    line = Text()
    if answer.get("version"):
        line.append(f"{answer['version']}, ")
    if answer["mode"] == "observe":
        line.append("observing only, nothing is written", "yellow")
    else:
        line.append("enforcing", "green")
    age_s = answer["age_s"]
    late = age_s > 5 * answer["interval_s"]
    line.append(f", as of {words.age(age_s)} ago", "bold red" if late else "").append(more, "dim")
    for reason in answer["degraded"]:
        line.append(f"\ndegraded: {reason}", "red")
    for note in answer["notes"]:
        line.append(f"\nnote: {note}", "yellow")
    return line


def allowance(root: dict[str, Any]) -> Text:
    """How much one best-effort root may use, by which knob."""
    from rich.text import Text

    line = Text(root["path"])
    if root["allowance_mcpu"] is None:
        return line.append(": not limited")
    line.append(" may use ").append(f"{words.cores(root['allowance_mcpu'])} cores", "bold magenta")
    line.append(f" ({root['limited_by']} by {root['owner']})")
    states = {row["state"] for row in root["knobs"] if row["knob"] == root["limited_by"]}
    if "failed" in states:
        line.append(" but the kernel refused it", "red")
    elif "observed" in states:
        line.append(" if it were enforced", "yellow")
    return line


def _node_cpu(answer: dict[str, Any]) -> str:
    used, whole = words.value_of(answer["usage"]["node_mcpu"]), answer["node"]["capacity_mcpu"]
    return f"CPU {words.cores(used)} of {words.cores(whole)} cores ({words.percent(used, whole)})"


def _node_memory(answer: dict[str, Any]) -> str:
    used, whole = words.value_of(answer["usage"]["node_memory_bytes"]), answer["node"]["capacity_bytes"]
    return f"memory {words.size(used)} of {words.size(whole)} ({words.percent(used, whole)})"


def _ago(age_s: float | None) -> str:
    return "never" if age_s is None else f"{words.age(age_s)} ago"


def _strategy(strategy: dict[str, Any]) -> Text:
    from rich.text import Text

    line = Text(f"{strategy['name']}: wants {words.count(strategy['decisions'], 'value')}")
    if strategy["error"]:
        line.append(f"\nfails, its last decisions stay: {strategy['error']}", "red")
    for note in strategy["notes"][:MAX_ROWS]:
        line.append(f"\n{note}", "yellow")
    return line


def _values(knobs: dict[str, Any]) -> Text:
    from rich.text import Text

    line = Text("none" if not knobs["total"] else "")
    for state, number in knobs["by_state"].items():
        line.append(", " if line.plain else "").append(f"{number} {state}", STATE_STYLE.get(state, ""))
    return line


def _failing(rows: list[dict[str, Any]]) -> RenderableType:
    made = table("CGROUP", "KNOB", "WANTED", "FAULT", wrap=("CGROUP", "FAULT"))
    for row in rows[:MAX_ROWS]:
        made.add_row(row["target"], row["knob"], row["wanted"], row["error"] or row["state"])
    if len(rows) > MAX_ROWS:
        made.add_row(f"and {len(rows) - MAX_ROWS} more (--output json has them)")
    return made


def _bold(text: str) -> Text:
    from rich.text import Text

    return Text(text, "bold")


def _dim(text: str) -> Text:
    from rich.text import Text

    return Text(text, "dim")


STATE_STYLE: Final = {"held": "green", "observed": "yellow", "failed": "red", "unsupported": "dim", "gone": "dim"}
