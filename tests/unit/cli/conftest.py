"""Commands asked of a real door in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from koordlet.doors.http import HttpDoor
from koordlet.model.status import Snapshot
from koordlet.model.view import WorkloadUsage
from koordlet.report.audit import AuditLog
from koordlet.report.metrics import Metrics
from koordlet.report.pages import Pages
from tests.unit.report.samples import NOW_S, RECORDS, WORKLOADS

OpenDoor = Callable[[Path, Snapshot | None], HttpDoor]


def open_door(path: Path, snapshot: Snapshot | None) -> HttpDoor:
    """A hand-made moment, 0.4 s old, behind a socket."""
    audit = AuditLog(None, clock=lambda: 1_790_000_000.0)
    for record in RECORDS:
        audit(record)

    def latest() -> tuple[Snapshot | None, tuple[WorkloadUsage, ...]]:
        return snapshot, WORKLOADS

    metrics = Metrics(latest, process=False)
    pages = Pages(metrics, lambda: snapshot, latest, audit, version="0.1.0", clock=lambda: NOW_S + 0.4)
    door = HttpDoor("", str(path), pages.public(), pages.private())
    door.start()
    return door


@pytest.fixture(autouse=True)
def quiet_agent() -> Iterator[None]:
    """The door of these tests lives in this process; what it logs is not the command's output."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def plain_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
