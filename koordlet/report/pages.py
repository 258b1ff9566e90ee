"""What each HTTP path answers: ties metrics, health, status, top, explain and the audit tail together.

A page gets the query and the Accept header, and returns (status, content type, body); the doors know no more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from koordlet.model.status import Latest, Snapshot
from koordlet.report.audit import TAIL_RECORDS, AuditLog
from koordlet.report.cpumap import cpus_json
from koordlet.report.explain import explain_json
from koordlet.report.health import Health, liveness, readiness
from koordlet.report.interference import interference_json
from koordlet.report.metrics import Metrics, Which
from koordlet.report.pins import Pins, plan_json
from koordlet.report.status import status_json, top_json

Reply = tuple[int, str, bytes] | tuple[int, str, bytes, Mapping[str, str]]
Page = Callable[[Mapping[str, str], str], Reply]

_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json; charset=utf-8"


class Pages:
    """public(): paths that anybody who reaches -addr may read. private(): those of the unix socket as well. actions():
    what the unix socket may be asked to do, by POST.

    latest: the snapshot with the rows of its pass. clock: the monotonic clock of the loop; started_s: on that clock.
    events: answers /events, None for no such page. pins: None where no workloads are declared.
    """

    def __init__(
        self,
        metrics: Metrics,
        snapshot: Callable[[], Snapshot | None],
        latest: Latest,
        audit: AuditLog,
        *,
        version: str = "",
        clock: Callable[[], float] = time.monotonic,
        events: Page | None = None,
        pins: Pins | None = None,
    ) -> None:
        self._pins = pins
        self._events = events
        self._metrics = metrics
        self._snapshot = snapshot
        self._latest = latest
        self._audit = audit
        self._version = version
        self._clock = clock
        self._started_s = clock()

    def public(self) -> dict[str, Page]:
        return {
            "/metrics": self._exposition(Which.ALL),
            "/internal-metrics": self._exposition(Which.INTERNAL),
            "/external-metrics": self._exposition(Which.EXTERNAL),
            "/healthz": lambda query, accept: _health(liveness(self._snapshot(), self._clock(), self._started_s)),
            "/readyz": lambda query, accept: _health(readiness(self._snapshot(), self._clock())),
            **({"/events": self._events} if self._events is not None else {}),
        }

    def private(self) -> dict[str, Page]:
        return {
            **self.public(),
            "/v1/status": self._status,
            "/v1/top": self._top,
            "/v1/cpus": self._cpus,
            "/v1/explain": self._explain,
            "/v1/interference": self._interference,
            "/v1/audit": self._audit_tail,
            "/v1/pins": self._plan,
        }

    def actions(self) -> dict[str, Page]:
        return {"/v1/pins/defragment": self._defragment}

    def _exposition(self, which: Which) -> Page:
        def page(query: Mapping[str, str], accept: str) -> Reply:
            body, content_type = self._metrics.exposition(accept, which)
            return 200, content_type, body

        return page

    def _status(self, query: Mapping[str, str], accept: str) -> Reply:
        snapshot = self._snapshot()
        return _NOT_YET if snapshot is None else _json(200, status_json(snapshot, self._clock(), self._version))

    def _top(self, query: Mapping[str, str], accept: str) -> Reply:
        snapshot, rows = self._latest()
        return _NOT_YET if snapshot is None else _json(200, top_json(snapshot, self._clock(), rows))

    def _cpus(self, query: Mapping[str, str], accept: str) -> Reply:
        snapshot = self._snapshot()
        return _NOT_YET if snapshot is None else _json(200, cpus_json(snapshot))

    def _interference(self, query: Mapping[str, str], accept: str) -> Reply:
        snapshot = self._snapshot()
        return _NOT_YET if snapshot is None else _json(200, interference_json(snapshot, self._clock()))

    def _explain(self, query: Mapping[str, str], accept: str) -> Reply:
        what = query.get("workload", "")
        if not what:
            return _json(400, {"error": "workload=<namespace/name, name, cgroup path or be> is missing"})
        snapshot, rows = self._latest()
        if snapshot is None:
            return _NOT_YET
        answer = explain_json(snapshot, what, self._clock(), rows, self._audit.tail())
        return _json(200 if answer["found"] else 404, answer)

    def _plan(self, query: Mapping[str, str], accept: str) -> Reply:
        if self._pins is None:
            return _NO_PINS
        plan = self._pins.plan()
        return _NOT_YET if plan is None else _json(200, plan_json(plan, self._pins.answered))

    def _defragment(self, query: Mapping[str, str], accept: str) -> Reply:
        """plan: id of the plan that was shown."""
        if self._pins is None:
            return _NO_PINS
        error = self._pins.ask(query.get("plan", ""))
        return _json(409, {"error": error}) if error else _json(202, {"accepted": query["plan"]})

    def _audit_tail(self, query: Mapping[str, str], accept: str) -> Reply:
        """size: how many of the last records, 1..256. Also how many could not be written, and why."""
        text = query.get("size", str(TAIL_RECORDS))
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= TAIL_RECORDS):
            return _json(400, {"error": f"size={text[:32]!r} is not a number in 1..{TAIL_RECORDS}"})
        return _json(
            200,
            {
                "records": self._audit.tail(int(text)),
                "write_errors": self._audit.write_errors,
                "last_error": self._audit.last_error,
            },
        )


def _health(health: Health) -> Reply:
    return (200 if health.ok else 503), _TEXT, health.text.encode("utf-8", "backslashreplace")


def _json(status: int, answer: Mapping[str, Any]) -> Reply:
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":")) + "\n"
    return status, _JSON, text.encode("utf-8", "backslashreplace")


_NOT_YET: Final = _json(503, {"error": "the agent is starting: no tick has finished yet"})
_NO_PINS: Final = _json(
    404, {"error": "no workloads are declared on this machine (-workloads); pods are placed by koord-scheduler"}
)
