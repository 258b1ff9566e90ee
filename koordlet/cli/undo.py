"""`koordlet undo`: put back every kernel value that an agent left behind."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from koordlet.cli import words
from koordlet.cli.client import RUN_DIR
from koordlet.cli.screen import add_output, console, fail, indent, parser, print_json, table

if TYPE_CHECKING:
    from koordlet.act.journal import Entry
    from koordlet.act.undo import UndoReport

STATE_DIR: Final = "/var/lib/koordlet"
AUDIT_DIR: Final = "/var/log/koordlet"
ROOTS: Final = ("cgroup", "sys", "sys-fs", "proc")

ABOUT: Final = """\
Puts back every kernel value that an agent changed and did not put back itself: after kill -9, a crash, or a
stop with -restore-on-exit=keep. A value that somebody else has changed since is left alone (--force takes it too).
"""


def main(argv: list[str]) -> int:
    options = parser("undo", ABOUT)
    options.add_argument("--state-dir", default=STATE_DIR, metavar="DIR", help=f"the journal's (default {STATE_DIR})")
    options.add_argument("--run-dir", default=RUN_DIR, metavar="DIR", help=f"the agent's (default {RUN_DIR})")
    options.add_argument("--mode", choices=("host", "daemonset"), default="host", help="where the host's files are")
    for root in ROOTS:
        options.add_argument(
            f"--{root}-root-dir", metavar="DIR", help=f"{root.replace('-', '/')} instead of the mode's"
        )
    options.add_argument("--audit-log-dir", default=AUDIT_DIR, metavar="DIR", help=f"default {AUDIT_DIR}")
    options.add_argument("--force", action="store_true", help="also values that somebody else has changed since")
    options.add_argument("--yes", action="store_true", help="do not ask")
    add_output(options)
    given = options.parse_args(argv)
    return _undo(given)


def _undo(given: Any) -> int:
    from koordlet.act.attributes import ATTRIBUTES_FILE, Attributes
    from koordlet.act.attributes_undo import left_behind, undo_attributes
    from koordlet.act.journal import Journal, JournalError, read_boot_id
    from koordlet.act.lock import DirectoryLock, Lock, LockedError
    from koordlet.act.resctrl_state import STATE_FILE, State, StateError
    from koordlet.act.resctrl_tree import ResctrlTree
    from koordlet.act.resctrl_undo import undo_resctrl
    from koordlet.act.undo import undo
    from koordlet.kernel.host import Host
    from koordlet.kernel.resctrl import resctrl_root
    from koordlet.model.places import JOURNAL_FILE, LOCK_FILE
    from koordlet.report import logs
    from koordlet.report.audit import AuditLog

    logs.configure("text", 0)  # to stderr; structlog's own default is stdout
    path = Path(given.state_dir) / JOURNAL_FILE
    roots = {f"{root.replace('-', '_')}_root": getattr(given, f"{root.replace('-', '_')}_root_dir") for root in ROOTS}
    host = Host.preset(given.mode, **{name: Path(root) for name, root in roots.items() if root})
    state = State(path.with_name(STATE_FILE), read_boot_id(host))
    groups = state.record.changes()
    attributes = Attributes(path.with_name(ATTRIBUTES_FILE), read_boot_id(host))
    others = left_behind(attributes)
    try:
        if not path.exists() and not groups and not others:
            return _nothing(given, f"{path}: there is no journal, so no agent has left anything behind")
        # The second tells of an agent that runs with another --run-dir.
        with Lock(Path(given.run_dir) / LOCK_FILE), DirectoryLock(path.parent):
            journal = Journal(path, read_boot_id(host))
            try:
                entries = journal.live()
                if not entries and journal.damaged and not groups and not others:
                    lines = words.count(journal.damaged, "line")
                    return fail("undo", f"{path}: {lines} cannot be read, and nothing else is there to undo")
                if not entries and not groups and not others:
                    return _nothing(given, "nothing to undo: the journal holds no value that is still changed")
                if not given.yes and (refused := _ask(entries, (*(f"resctrl/{name}" for name in groups), *others))):
                    return refused
                audit = AuditLog(given.audit_log_dir)
                report = undo(host, journal, audit, force=given.force)
                errors = undo_resctrl(ResctrlTree(resctrl_root(host)), state)[1] if groups else []
                still = undo_attributes(host, attributes) if others else ()
                audit.close()
            finally:
                journal.close()
    except LockedError as error:
        stop = "systemctl stop koordlet" if error.pid is None else f"systemctl stop koordlet, or kill {error.pid}"
        text = f"an agent is running and owns these values; stop it first ({stop}). A clean stop puts them back itself"
        return fail("undo", text)
    except (JournalError, StateError, OSError) as error:
        hint = "; try again with sudo" if isinstance(error, PermissionError) else ""
        return fail("undo", f"{error}{hint}")
    code = _tell(given, report)
    if groups:
        left = f"; {len(errors)} failed, try again: {errors[0]}" if errors else ""
        sys.stderr.write(f"{words.count(len(groups), 'resctrl group')} put right{left}\n")
    if others:
        left = f"; {len(still)} could not be: {still[0]}" if still else ""
        sys.stderr.write(
            f"{words.count(len(others), 'process, group or device', 'processes, groups or devices')} put right{left}\n"
        )
    return code or (1 if errors or still else 0)


def _nothing(given: Any, text: str) -> int:
    if given.output == "json":
        print_json({"restored": 0, "lifted": 0, "kept": 0, "failed": 0, "rows": [], "note": text})
    else:
        print(text)
    return 0


def _ask(entries: tuple[Entry, ...], groups: tuple[str, ...]) -> int:
    """0 to go on, else the exit code."""
    if not sys.stdin.isatty():
        number = words.count(len(entries) + len(groups), "kernel value")
        return fail("undo", f"{number} would be put back; say --yes to do it without asking", 2)
    screen = console(stderr=True)
    made = table("CGROUP", "KNOB", "BACK TO", wrap=("CGROUP", "BACK TO"))
    for entry in entries[:20]:
        made.add_row(entry.target, entry.knob.value, entry.original.decode("utf-8", "replace").strip())
    if len(entries) > 20:
        made.add_row(f"and {len(entries) - 20} more")
    for name in groups:
        made.add_row(name, "", "as before the agent")
    screen.print(indent(made))
    sys.stderr.write(f"Put {words.count(len(entries) + len(groups), 'kernel value')} back? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return 0
    return fail("undo", "nothing was changed")


def _tell(given: Any, report: UndoReport) -> int:
    code = 1 if report.failed else 0
    if given.output == "json":
        rows = [{**dataclasses.asdict(row), "knob": row.knob.value, "action": row.action.value} for row in report.rows]
        counts = {name: getattr(report, name) for name in ("restored", "lifted", "kept", "failed")}
        print_json({**counts, "rows": rows})
        return code
    screen = console()
    made = table("CGROUP", "KNOB", "WAS", "ORIGINAL", "RESULT", wrap=("CGROUP", "WAS", "ORIGINAL", "RESULT"))
    for row in report.rows:
        style = {"failed": "red", "restored": "green"}.get(row.action.value, "yellow")
        result = f"{row.action.value}: {row.error}" if row.error else row.action.value
        made.add_row(row.target, row.knob.value, row.current, row.original, result, style=style)
    screen.print(made)
    screen.print(
        f"{report.restored} put back, {report.kept} left because somebody else changed them, {report.failed} failed"
    )
    if report.lifted:
        screen.print(
            f"{report.lifted} lifted: all CPUs are allowed there again. The kernel takes no empty list while processes "
            "run in the cgroup; koordlet undo writes it once they have ended."
        )
    if report.failed:
        screen.print("What failed stays in the journal; run koordlet undo again when the cause is gone.")
    if report.kept and not given.force:
        screen.print("koordlet undo --force takes the changed ones too.")
    return code
