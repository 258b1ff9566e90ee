"""Readings of containers and pods -> samples of online workloads and activities of best effort, for the analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import Host
from koordlet.kernel.psi import cgroup_psi_path, read_psi
from koordlet.model.hardware import Counts
from koordlet.model.pod import Pod, PodSet
from koordlet.model.qos import Qos
from koordlet.model.resctrl import CacheReadings
from koordlet.model.view import WorkloadUsage
from koordlet.store.interference import Activity, Sample

MIN_MCPU = 250.0
"""An online workload that uses less has no cycles per instruction worth comparing (CPI2, 3.1)."""
ONLINE = (Qos.LSE, Qos.LSR, Qos.LS)


class Readings:
    """Keeps the PSI totals of the round before."""

    def __init__(self, host: Host, workloads: Callable[[], Iterable[WorkloadUsage]]) -> None:
        self._host, self._workloads = host, workloads
        self._before: dict[str, tuple[float, int]] = {}

    def round(
        self, now_s: float, pods: PodSet, counts: Mapping[str, Counts], cache: CacheReadings | None
    ) -> tuple[list[Sample], dict[str, Activity]]:
        used = {row.cgroup: row.cpu_mcpu.value for row in self._workloads() if row.cpu_mcpu and not row.container}
        samples: list[Sample] = []
        batch: dict[str, Activity] = {}
        totals: dict[str, tuple[float, int]] = {}
        for pod in pods.pods:
            if not pod.active or not pod.cgroup:
                continue
            reading = cache.pods.get(pod.uid) if cache is not None else None
            if pod.default_qos is Qos.BE:
                if pod.cgroup in used:
                    rate = reading.total_rate if reading is not None else None
                    batch[pod.key] = Activity(used[pod.cgroup], rate)
                continue
            if pod.default_qos not in ONLINE:
                continue
            value = _cpi(pod, counts, now_s) if used.get(pod.cgroup, 0.0) >= MIN_MCPU else None
            signal = "cpi"
            if value is None:
                signal, value = "psi_cpu", self._waiting(pod, now_s, totals)
            if value is not None:
                llc = reading.llc_bytes if reading is not None else None
                rate = reading.total_rate if reading is not None else None
                samples.append(Sample(pod.key, signal, value, llc, rate))
        self._before = totals
        return samples, batch

    def _waiting(self, pod: Pod, now_s: float, totals: dict[str, tuple[float, int]]) -> float | None:
        """Share of the time since the round before in which something of the pod waited for a CPU."""
        path = cgroup_psi_path(self._host, pod.cgroup, "cpu")
        if path is None:
            return None
        try:
            psi = read_psi(path)
        except (OSError, KernelFileError):
            return None
        if psi is None:
            return None
        totals[pod.cgroup] = (now_s, psi.some.total_us)
        before = self._before.get(pod.cgroup)
        if before is None or now_s <= before[0] or psi.some.total_us < before[1]:
            return None
        return (psi.some.total_us - before[1]) / 1e6 / (now_s - before[0])


def _cpi(pod: Pod, counts: Mapping[str, Counts], now_s: float) -> float | None:
    """Over all its containers that counted in the window that has just ended."""
    rows = [counts[cgroup] for c in pod.containers if (cgroup := pod.directory(c)) in counts]
    known = [row for row in rows if row.at_s == now_s and row.cycles is not None and row.instructions]
    instructions = sum(row.instructions or 0 for row in known)
    return sum(row.cycles or 0 for row in known) / instructions if instructions else None
