"""`koordlet explain`: why a workload's kernel values are what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from koordlet.cli import words
from koordlet.cli.client import AgentError, ask
from koordlet.cli.screen import add_output, add_socket, console, fail, indent, parser, print_json, sheet, table
from koordlet.cli.status import STATE_STYLE, allowance

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

EXAMPLES = """\
examples:
  koordlet explain batch/spark-exec-1      a pod
  koordlet explain spark-exec-1            the same, if no other namespace has one
  koordlet explain be                      the best-effort groups
  koordlet explain kubepods/besteffort     a cgroup and all below it
"""


def main(argv: list[str]) -> int:
    options = parser("explain", "Which values are set on a workload, by whom, and with which numbers.", EXAMPLES)
    options.add_argument("workload", help="namespace/name, name, cgroup path, or be")
    add_socket(options)
    add_output(options)
    given = options.parse_args(argv)
    try:
        status, answer = ask(given.socket, "/v1/explain", workload=given.workload)
    except AgentError as error:
        return fail("explain", error)
    if status not in (200, 404) or not isinstance(answer, dict):
        return fail("explain", answer.get("error", answer) if isinstance(answer, dict) else answer)
    if given.output == "json":
        print_json(answer)
        return 0 if answer["found"] else 1
    if not answer["found"]:
        return fail("explain", _not_found(answer))
    screen = console()
    for part in page(answer):
        screen.print(part)
    return 0


def page(answer: dict[str, Any]) -> list[RenderableType]:
    """The whole page, from a /v1/explain answer that found something."""
    parts: list[RenderableType] = [_head(answer)]
    own = [row for row in answer["knobs"] if not row["inherited"]]
    above = [row for row in answer["knobs"] if row["inherited"]]
    verb = "would be set" if answer["mode"] == "observe" else "set"
    if own:
        parts += ["", _title(f"Values {verb} here"), indent(_knobs(own, answer["targets"]))]
    else:
        parts += ["", _title(f"No value is {verb} here")]
    if answer["knobs_left_out"]:
        parts.append(f"  and {answer['knobs_left_out']} more (--output json)")
    if above:
        parts += ["", _title("Values of the groups above, which hold here too"), indent(_knobs(above, []))]
    if answer["shadowed"]:
        parts += ["", _title("Wanted, but another strategy has the say"), indent(_shadowed(answer["shadowed"]))]
    if answer["audit"]:
        parts += ["", _title("Last records"), indent(_audit(answer["audit"]))]
    return parts


def _head(answer: dict[str, Any]) -> RenderableType:
    rows = sheet()
    pod = answer["pod"]
    if pod:
        rows.add_row("Pod", f"{pod['namespace']}/{pod['name']}, {pod['phase'].lower()}")
        kind = f"{pod['qos']}, {pod['priority_class'] or 'no priority class'}, Kubernetes {pod['kube_qos']}"
        rows.add_row("Class", kind + (", best effort" if pod["best_effort"] else ""))
        if pod["cpuset"] is not None or pod["cpuset_error"]:
            rows.add_row("CPUs", pod["cpuset_error"] or pod["cpuset"])
        if pod["batch_request_mcpu"]:
            rows.add_row("Batch CPU", f"{words.cores(pod['batch_request_mcpu'])} cores requested")
    elif answer["kind"] == "host_app":
        rows.add_row("Host app", answer["query"])
    for target in answer["targets"]:
        rows.add_row("Cgroup", target)
    if answer["usage"]:
        rows.add_row("Usage", _usage(answer["usage"]))
    for root in answer["be_roots"]:
        rows.add_row("Best effort", allowance(root))
        if root["why"]:
            rows.add_row("", _dim(f"because {words.why(root['why'])}"))
    return rows


def _usage(rows: list[dict[str, Any]]) -> RenderableType:
    made = table("", "CPU", "MEMORY", "THROTTLED", "AGE", right=("CPU", "MEMORY", "THROTTLED", "AGE"))
    made.show_header = False
    for row in rows[:12]:
        throttled = words.value_of(row["throttled_ratio"])
        made.add_row(
            row["container"] or row["name"],
            f"{words.cores(words.value_of(row['cpu_mcpu']))} cores",
            words.size(words.value_of(row["memory_bytes"])),
            "" if throttled is None else f"throttled {100 * throttled:.0f} %",
            "" if row["cpu_mcpu"] is None else f"{words.age(row['cpu_mcpu']['age_s'])} ago",
        )
    return made


def _knobs(rows: list[dict[str, Any]], targets: list[str]) -> RenderableType:
    """One block per value: what, then why. The path is told where it is not the workload's own."""
    from rich.console import Group
    from rich.text import Text

    blocks: list[RenderableType] = []
    for row in rows:
        line = (
            Text().append(row["knob"], "bold").append(f" = {row['wanted']}").append(f"  was {row['original']}", "dim")
        )
        line.append("  by ").append(row["owner"], "cyan")
        line.append("  ").append(row["state"], STATE_STYLE.get(row["state"], ""))
        line.append(f" for {words.age(row['since_age_s'])}", "dim")
        if row["target"] not in targets:
            line.append(f"\n  in {_below(row['target'], targets)}", "dim")
        if row["error"]:
            line.append(f"\n  {row['error']}", "red")
        if row["why"]:
            line.append("\n  because ", "dim").append(words.why(row["why"]))
        blocks.append(line)
    return Group(*blocks)


def _below(target: str, targets: list[str]) -> str:
    for top in targets:
        if target.startswith(f"{top}/"):
            return f".../{target.removeprefix(top + '/')}"
    return target


def _shadowed(rows: list[dict[str, Any]]) -> RenderableType:
    made = table("KNOB", "WANTED", "BY", "BUT SET BY", "BECAUSE", wrap=("BECAUSE",))
    for row in rows:
        made.add_row(row["knob"], row["wanted"], row["owner"], row["winner"], words.why(row["why"]))
    return made


def _audit(rows: list[dict[str, Any]]) -> RenderableType:
    made = table("TIME", "REASON", "WHAT", wrap=("WHAT",))
    made.show_header = False
    for row in rows:
        what = row.get("message", "")
        if row.get("error"):
            what += f" ({row['error']})"
        made.add_row(str(row["createdAt"])[11:19], row.get("reason", ""), what)
    return made


def _not_found(answer: dict[str, Any]) -> str:
    text = f"{answer['query'][:120]!r}: {answer['reason']}"
    if answer["candidates"]:
        return f"{text}; do you mean" + "".join(f"\n  koordlet explain {name}" for name in answer["candidates"])
    return f"{text}\n  koordlet top lists the workloads"


def _title(text: str) -> Text:
    from rich.text import Text

    return Text(text, "bold")


def _dim(text: str) -> Text:
    from rich.text import Text

    return Text(text, "dim")
