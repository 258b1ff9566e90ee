"""Eviction: the applier with its ways out, as flags and mode have it."""

from __future__ import annotations

from koordlet.act.attributes import Attributes
from koordlet.act.cri import CriStop
from koordlet.act.evict import Answer, EvictBy, EvictionApi, Evictor
from koordlet.config.flags import Flags
from koordlet.kernel.host import Host
from koordlet.kube.evict import Evictions, PodRef
from koordlet.model.audit import AuditSink
from koordlet.model.eviction import Evict
from koordlet.model.pod import Tree
from koordlet.report.metrics import Metrics
from koordlet.sources.local import boot_uuid, uid_now


def make_evictor(
    flags: Flags,
    host: Host,
    audit: AuditSink,
    metrics: Metrics,
    attributes: Attributes,
    api: EvictionApi | None = None,
) -> Evictor:
    """api: None where no cluster is configured."""
    boot_id = boot_uuid(host)

    def identify(evict: Evict) -> bool:
        """A kubelet's directory names the pod's uid; a declared one is known by its inode."""
        if evict.tree is Tree.OURS:
            return uid_now(host, boot_id, evict.cgroup) == evict.target
        name = evict.cgroup.rpartition("/")[2].replace("_", "-")
        return evict.target in name and host.dir("cpu", evict.cgroup).is_dir()

    by = EvictBy.API if flags.only_evict_by_api else EvictBy(flags.evict_by)
    return Evictor(
        host,
        audit,
        metrics.count_eviction,
        identify,
        api=api,
        runtime=CriStop(flags.cri_socket) if by is EvictBy.CRI else None,
        by=by,
        observe=flags.observe,
        attributes=attributes,
    )


class ThroughCluster:
    """`EvictionApi` of a member of a cluster."""

    def __init__(self, evictions: Evictions) -> None:
        self._evictions = evictions

    def ask(self, evict: Evict) -> None:
        self._evictions.ask(_ref(evict))

    def answers(self) -> list[Answer]:
        return [Answer(one.uid, one.error, one.gone) for one in self._evictions.answers()]

    def tell(self, evict: Evict, reason: str, message: str) -> None:
        self._evictions.tell(_ref(evict), reason, message)


def _ref(evict: Evict) -> PodRef:
    return PodRef(evict.namespace, evict.name, evict.target)
