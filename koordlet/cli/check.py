"""`koordlet check`: what this machine can do, and what to do about each gap. Needs no agent, changes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from koordlet.cli import words
from koordlet.cli.client import RUN_DIR
from koordlet.cli.environment import Finding, Grade, environment
from koordlet.cli.screen import add_output, console, indent, parser, print_json, table
from koordlet.cli.undo import STATE_DIR

if TYPE_CHECKING:
    from rich.console import Console

    from koordlet.model.support import Support

NEEDED: Final = (("cpu.usage",), ("cpu.cfs_quota_us", "cpuset.cpus"))
"""Each line: one of these must be there, else nothing can be measured or nothing can be lent."""

ABOUT: Final = """\
Lists what this machine can do and what to do about each gap. Exit code 0 when the basic function works: measure
CPU use, and limit best-effort work by quota or CPU list. Start it as root to see what the agent would see.
"""


def main(argv: list[str]) -> int:
    from koordlet.kernel.host import Host
    from koordlet.kernel.probe import probe

    options = parser("check", ABOUT)
    options.add_argument("--mode", choices=("host", "daemonset"), default="host", help="where the host's files are")
    options.add_argument("--cgroup-root-dir", metavar="DIR", help="cgroup file system instead of the mode's")
    options.add_argument(
        "--be-dir", metavar="CGROUP", help="the best-effort cgroup to look at, such as kubepods/besteffort"
    )
    options.add_argument("--state-dir", default=STATE_DIR, metavar="DIR", help=f"the agent's (default {STATE_DIR})")
    options.add_argument("--run-dir", default=RUN_DIR, metavar="DIR", help=f"the agent's (default {RUN_DIR})")
    add_output(options)
    given = options.parse_args(argv)
    roots = {"cgroup_root": Path(given.cgroup_root_dir)} if given.cgroup_root_dir else {}
    host = Host.preset(given.mode, **roots)
    support = probe(host, given.be_dir.strip("/") if given.be_dir else None)
    findings = environment(host, Path(given.state_dir), Path(given.run_dir))
    missing = _missing(support) + [found.name for found in findings if found.grade is Grade.FAIL]
    if given.output == "json":
        print_json(_answer(host.version.value, support, findings, missing))
    else:
        _show(console(), host.version.value, support, findings, missing)
    return 1 if missing else 0


def _missing(support: Support) -> list[str]:
    return [" or ".join(names) for names in NEEDED if not any(support.has(name) for name in names)]


def _answer(version: str, support: Support, findings: list[Finding], missing: list[str]) -> dict[str, Any]:
    return {
        "ok": not missing,
        "missing": missing,
        "kernel": os.uname().release,
        "cgroup_version": version,
        "cpus": os.cpu_count(),
        "capabilities": [
            {"name": str(row.name), "level": row.level.value, "reason": row.reason, "advice": row.advice}
            for row in support.table.values()
        ],
        "environment": [
            {"name": found.name, "grade": found.grade.value, "text": found.text, "advice": found.advice}
            for found in findings
        ],
    }


def _show(screen: Console, version: str, support: Support, findings: list[Finding], missing: list[str]) -> None:
    from rich.text import Text

    screen.print(f"Linux {os.uname().release}, cgroup {version}, {words.count(os.cpu_count() or 0, 'CPU')}")
    screen.print()
    made = table("ENVIRONMENT", "", "", wrap=("",))
    for found in findings:
        made.add_row(
            found.name, Text(found.grade.value, _GRADE_STYLE[found.grade]), _with_advice(found.text, found.advice)
        )
    screen.print(made)
    screen.print()
    made = table("CAPABILITY", "LEVEL", "WHY, AND WHAT TO DO", wrap=("WHY, AND WHAT TO DO",))
    for row in support.table.values():
        made.add_row(
            str(row.name), Text(row.level.value, _LEVEL_STYLE[row.level.value]), _with_advice(row.reason, row.advice)
        )
    screen.print(made)
    screen.print()
    if missing:
        screen.print(f"The agent cannot do its basic work here. Missing: {', '.join(missing)}.", style="bold red")
        return
    gaps = sum(row.level.value == "unsupported" for row in support.table.values())
    screen.print("The basic function works on this machine.", style="bold green")
    if gaps:
        screen.print(indent(f"{words.count(gaps, 'capability', 'capabilities')} missing; the agent does without."))


def _with_advice(text: str, advice: str) -> Any:
    from rich.text import Text

    line = Text(text, "" if advice else "dim")
    return line.append(f"\n{advice}", "yellow") if advice else line


_GRADE_STYLE: Final = {Grade.OK: "green", Grade.WARN: "yellow", Grade.FAIL: "bold red"}
_LEVEL_STYLE: Final = {"native": "green", "emulated": "yellow", "unsupported": "red"}
