"""When a NodeMetric's status is written, to what, and what keeps it from being written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest

from koordlet.kube.access import Access
from koordlet.kube.client import Api
from koordlet.kube.errors import ApiError
from koordlet.kube.objects import METRICS, Metadata, MetricObject
from koordlet.model.pod import PodSet
from koordlet.model.status import ApplyReport, Snapshot, TickStats
from koordlet.model.view import NodeView
from koordlet.report.nodemetric_publication import MetricSpec, NodeMetricPublication
from koordlet.store.rings import RingStore
from tests.hosts.apiserver import ApiServer
from tests.hosts.apiserver import status as answer

PATH = f"{METRICS}/node-a"
WALL_S = 1_767_225_600.0


class Rig:
    """A publication against a little API server; samples each second, looked at as often as the publisher does."""

    def __init__(self, server: ApiServer, api: Api) -> None:
        self.server, self.api = server, api
        self.rings = RingStore()
        self.metric: MetricObject | None = None
        self.spec = MetricSpec(lambda: self.metric)
        self.publication = NodeMetricPublication(self.spec, self.rings, lambda snapshot, pods: None, "node-a")
        self.measuring = True
        self.now_s, self.wall_s = 0.0, WALL_S

    def made(self, **policy: Any) -> Rig:
        """koord-manager makes the object."""
        self.metric = MetricObject(Metadata("node-a"), {"metricCollectPolicy": policy})
        self.server.put(PATH, {"spec": self.metric.spec})
        return self

    def snapshot(self, age_s: float = 0.0) -> Snapshot:
        at_s = self.now_s - age_s
        view = NodeView(now_s=at_s, pods=PodSet((), 1, at_s))
        return Snapshot(view, {}, ApplyReport(), TickStats(), self.wall_s + at_s)

    def seconds(self, count: int, age_s: float = 0.0) -> list[float]:
        """Lets time pass; moments of the writes."""
        written = []
        for _ in range(count):
            self.now_s += 1
            if self.measuring:
                for kind in ("node", "system"):
                    for metric in ("cpu", "memory"):
                        self.rings.push(self.rings.open(kind, "", metric), self.now_s, 1000.0)
            snapshot = self.snapshot(age_s)
            if self.publication.due(snapshot, self.now_s):
                self.publication.publish(self.api, snapshot, self.now_s)
                written.append(self.now_s)
        return written

    @property
    def status(self) -> dict[str, Any] | None:
        return self.server.objects[PATH].get("status")


@pytest.fixture
def rig() -> Iterator[Rig]:
    server = ApiServer()
    api = Api(Access(server.url, lambda anew: {}), read_s=5)
    try:
        yield Rig(server, api)
    finally:
        api.close()
        server.close()


def test_one_report_each_interval_the_first_after_one(rig: Rig) -> None:
    assert rig.made().seconds(200) == [61.0, 121.0, 181.0]
    assert rig.status is not None
    assert rig.status["updateTime"] == "2026-01-01T00:03:01Z"
    assert rig.status["nodeMetric"]["nodeUsage"] == {"resources": {"cpu": "1", "memory": "1k"}}
    assert rig.server.objects[PATH]["spec"] == {"metricCollectPolicy": {}}
    assert [request[:2] for request in rig.server.requests] == [("PATCH", f"{PATH}/status")] * 3


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_a_step_of_the_clock_moves_the_time_and_not_the_interval(rig: Rig, step_s: int) -> None:
    rig.made().seconds(90)
    rig.wall_s += step_s
    assert rig.seconds(100) == [121.0, 181.0]
    assert rig.status is not None
    assert datetime.fromisoformat(rig.status["updateTime"]).timestamp() == WALL_S + step_s + 181
    assert rig.status["nodeMetric"]["nodeUsage"] == {"resources": {"cpu": "1", "memory": "1k"}}
    assert rig.publication.error == ""


@pytest.mark.parametrize(("off_s", "told_s"), [(3600, 0), (-3600, 0), (20, 20), (-20, -20)])
def test_the_servers_clock_counts_where_the_nodes_is_wrong(rig: Rig, off_s: int, told_s: int) -> None:
    rig.made().seconds(60)
    rig.wall_s += off_s
    rig.server.date = format_datetime(datetime.fromtimestamp(WALL_S + 61, UTC), usegmt=True)
    rig.api.get(PATH)
    assert rig.seconds(1) == [61.0]
    assert rig.status is not None
    assert datetime.fromisoformat(rig.status["updateTime"]).timestamp() == pytest.approx(WALL_S + 61 + told_s, abs=5)
    assert bool(rig.publication.clock_error) is (told_s == 0)


@pytest.mark.parametrize("date", ["", "yesterday", "Thu, 99 Jan 2026 00:00:00 GMT"])
def test_a_server_that_does_not_tell_the_time(rig: Rig, date: str) -> None:
    rig.server.date = date
    rig.made()
    rig.api.get(PATH)
    assert rig.api.clock_s() is None
    assert rig.seconds(61) == [61.0]
    assert rig.publication.clock_error == ""


def test_another_interval_holds_at_once(rig: Rig) -> None:
    rig.made(reportIntervalSeconds=300)
    assert rig.seconds(100) == []
    rig.made(reportIntervalSeconds=30)
    assert rig.seconds(40) == [101.0, 131.0]


def test_without_the_object_nothing_is_written_until_it_is_there(rig: Rig) -> None:
    """Case node-object-not-ready: no error, no flood of warnings, and then at once."""
    assert rig.seconds(90) == []
    assert rig.publication.error == ""
    rig.made()
    assert rig.seconds(2) == [91.0]


def test_an_object_that_is_gone_is_no_error(rig: Rig) -> None:
    rig.made()
    rig.server.remove(PATH)  # and the watch has not said so yet
    rig.seconds(62)
    rig.made()
    assert rig.seconds(1) == [63.0]
    assert rig.status is not None


def test_a_made_anew_object_is_filled_at_the_next_interval(rig: Rig) -> None:
    rig.made().seconds(61)
    rig.server.remove(PATH)
    rig.metric = None
    assert rig.seconds(10) == []
    rig.made()
    assert rig.seconds(60) == [121.0]
    assert rig.status is not None


def test_a_refusal_is_told_to_the_publisher_and_tried_again(rig: Rig) -> None:
    rig.made().seconds(60)
    rig.server.refuse = lambda verb, path: answer(409, "Conflict")
    with pytest.raises(ApiError):
        rig.seconds(1)
    rig.server.refuse = lambda verb, path: None
    assert rig.seconds(1) == [62.0]


def test_another_writer_of_the_status_is_overwritten(rig: Rig) -> None:
    rig.made().seconds(61)
    foreign = {
        "podsMetric": [{"name": "ghost", "namespace": "x", "podUsage": {}}],
        "updateTime": "2030-01-01T00:00:00Z",
    }
    rig.server.put(PATH, {"spec": {}, "status": foreign})
    rig.seconds(60)
    assert rig.status is not None
    assert "podsMetric" not in rig.status
    assert rig.status["updateTime"] == "2026-01-01T00:02:01Z"


def test_f01_dead_collectors_give_no_fresh_time(rig: Rig) -> None:
    rig.made().seconds(61)
    rig.measuring = False
    assert rig.seconds(200) == []
    assert rig.status is not None
    assert rig.status["updateTime"] == "2026-01-01T00:01:01Z"
    assert rig.publication.error == "cpu usage of the node is 200 s old"
    rig.measuring = True
    assert rig.seconds(1) == [262.0]
    assert rig.publication.error == ""


def test_f01_a_loop_that_hangs_gives_no_fresh_time(rig: Rig) -> None:
    rig.made().seconds(61)
    assert rig.seconds(100, age_s=31) == []
    assert rig.publication.error == "the last tick is 31 s old"


def test_a_malformed_spec_keeps_the_last_good_one(rig: Rig) -> None:
    rig.made(reportIntervalSeconds=120)
    rig.seconds(1)
    rig.made(reportIntervalSeconds="soon")
    assert rig.seconds(130) == [121.0]
    assert "reportIntervalSeconds" in rig.spec.error
    rig.made(reportIntervalSeconds=30)
    rig.seconds(1)
    assert rig.spec.error == ""
