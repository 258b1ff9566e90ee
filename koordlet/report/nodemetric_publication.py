"""Keeps the status of this node's NodeMetric up to date: each interval, whole, or not at all.

koord-manager makes the object and owns its spec; while it is not there nothing is written. The status goes out as a
merge patch, so that neither a stale copy nor another writer of the object is in its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import structlog

from koordlet.config.errors import PolicyError
from koordlet.config.nodemetric import read_metric_policy
from koordlet.kube.client import Api
from koordlet.kube.errors import ApiError
from koordlet.kube.objects import METRICS, MetricObject
from koordlet.model.device import Gpu
from koordlet.model.nodemetric import MetricPolicy
from koordlet.model.pod import Pod
from koordlet.model.prediction import ProdPrediction
from koordlet.model.status import Snapshot
from koordlet.report.nodemetric import STALE_S, NotReportable, Windows, as_patch, build_status, problem

log = structlog.get_logger(__name__)

SKEW_S: Final = 30.0
"""Clocks of a cluster that differ by more are not the network's doing."""
_NOT_FOUND: Final = 404


class MetricSpec:
    """What the NodeMetric's spec asks for now. A malformed one changes nothing and is said once.

    current: None while there is no object.
    """

    def __init__(self, metric: Callable[[], MetricObject | None]) -> None:
        self._metric = metric
        self._read: object = None
        self._policy = MetricPolicy()
        self.error = ""

    @property
    def current(self) -> MetricPolicy | None:
        found = self._metric()
        if found is None:
            return None
        if found.spec is not self._read:
            self._read = found.spec
            try:
                self._policy, self.error = read_metric_policy(found.spec), ""
            except PolicyError as error:
                self.error = str(error)
                log.warning("nodemetric.spec_refused", error=self.error)
        return self._policy


class Predicting(Protocol):
    """snapshot, pods that the report lists -> what is predicted of them; None where a model is missing."""

    def __call__(self, snapshot: Snapshot, pods: list[Pod]) -> ProdPrediction | None: ...


class NodeMetricPublication:
    """numa_ids, gpus: what is measured of the node. error: why there is no report although one is due, "" otherwise.
    clock_error: that this node's clock is not the API server's, "" otherwise.

    told: the last status that was written, {} before."""

    name = "nodemetric"

    def __init__(
        self,
        spec: MetricSpec,
        windows: Windows,
        predict: Predicting,
        node_name: str,
        numa_ids: Callable[[], Iterable[int]] = tuple,
        gpus: Callable[[], tuple[Gpu, ...]] = tuple,
    ) -> None:
        self._spec, self._windows, self._predict = spec, windows, predict
        self._path = f"{METRICS}/{node_name}/status"
        self._numa_ids, self._gpus = numa_ids, gpus
        self._reported_s: float | None = None
        self.told: dict[str, Any] = {}
        self.error = self.clock_error = ""

    def due(self, snapshot: Snapshot, now_s: float) -> bool:
        """One interval after the start, and after each report; only with fresh figures of the node."""
        if self._reported_s is None:
            self._reported_s = now_s
        policy = self._spec.current
        if policy is None or now_s - self._reported_s < policy.interval_s:
            self.error = ""
            return False
        return not self._told(_late(snapshot, now_s) or problem(self._windows, policy, snapshot.view.now_s))

    def publish(self, api: Api, snapshot: Snapshot, now_s: float) -> None:
        policy = self._spec.current
        if policy is None:
            return
        try:
            status = build_status(
                self._windows,
                snapshot.view,
                policy,
                lambda pods: self._predict(snapshot, pods),
                self._wall_s(api, snapshot, now_s),
                self._numa_ids(),
                self._gpus(),
            )
        except NotReportable as missing:
            self._told(str(missing))
            return
        try:
            api.merge_patch(self._path, as_patch(status))
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
            return  # deleted just now: the watch will say so, and when it is there again
        self._reported_s = now_s
        self.told = status

    def _wall_s(self, api: Api, snapshot: Snapshot, now_s: float) -> float:
        """When the snapshot was made, by a clock that those who read the report can believe.

        beyond: koord-manager takes back what it lent when updateTime is old by its own clock, and the scheduler passes
        such a node by; one in the future would hide a dead agent for as long. So where this node's clock is wrong, the
        API server's counts.
        """
        server_s = api.clock_s()
        ahead_s = 0.0 if server_s is None else snapshot.wall_s + (now_s - snapshot.view.now_s) - server_s
        if abs(ahead_s) <= SKEW_S:
            self.clock_error = ""
            return snapshot.wall_s
        before, way = self.clock_error, "ahead of" if ahead_s > 0 else "behind"
        self.clock_error = (
            f"the clock of this node is {abs(ahead_s):.0f} s {way} the API server's, whose time is reported"
        )
        if not before:
            log.warning("nodemetric.clock", ahead_s=round(ahead_s), reported="the time of the API server")
        return snapshot.wall_s - ahead_s

    def _told(self, problem: str) -> str:
        if problem and problem != self.error:
            if not self.error:
                log.warning("nodemetric.not_reported", reason=problem)
        elif self.error and not problem:
            log.info("nodemetric.reported_again")
        self.error = problem
        return problem


def _late(snapshot: Snapshot, now_s: float) -> str:
    age_s = now_s - snapshot.view.now_s
    return f"the last tick is {age_s:.0f} s old" if age_s > STALE_S else ""
