"""What the labs' run ends with: per lab the real parts and their versions, how long it took to start, and its tests."""

from __future__ import annotations

import pytest

TOLD = pytest.StashKey[dict[str, list[str]]]()
MARKS = {
    "lab_vm": "kernel lab",
    "lab_resctrl": "resctrl lab",
    "lab_runtime": "runtime lab",
    "lab_cluster": "cluster lab",
}


def tell(config: pytest.Config, mark: str, line: str) -> None:
    """Note a started lab: parts with versions, and the time that the start took."""
    config.stash.setdefault(TOLD, {}).setdefault(mark, []).append(line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = []
    for mark, name in MARKS.items():
        counts = {
            outcome: sum(
                mark in report.keywords
                for report in terminalreporter.stats.get(outcome, ())
                if isinstance(report, pytest.TestReport)
            )
            for outcome in ("passed", "failed", "error", "skipped")
        }
        if any(counts.values()):
            tests = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
            rows.append((name, config.stash.get(TOLD, {}).get(mark, ["not started"]), tests))
    if rows:
        terminalreporter.section("labs")
        for name, lines, tests in rows:
            terminalreporter.line(f"{name}: {tests}")
            for line in lines:
                terminalreporter.line(f"  {line}")
