"""Who runs here: the configured sources of workloads, what is wrong with them, and what wakes them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from koordlet.config.flags import Flags
from koordlet.inputs import KubepodsInput, LatePods
from koordlet.kernel.host import Host
from koordlet.kernel.kubepods import Kubepods
from koordlet.model.pinning import Partition
from koordlet.model.places import PINS_FILE
from koordlet.model.qos import Qos
from koordlet.model.view import NodeInfo
from koordlet.parts import Source
from koordlet.sources.kubelet import PodsSource
from koordlet.sources.local import LocalSource
from koordlet.sources.podwake import PodWake
from koordlet.sources.sandboxdirs import subdirectories
from koordlet.store.pins import PinFile
from koordlet.wiring.pinning import PinnedSource


class Sources:
    """all: in the order in which they win for the same uid. pinned: declared workloads, None without any."""

    def __init__(
        self, all: tuple[Source, ...], local: LocalSource | None, pinned: PinnedSource | None, late: LatePods | None
    ) -> None:
        self.all = all
        self.pinned = pinned
        self._local, self._late = local, late

    def searched(self, now_s: float) -> int:
        """Revision of the declared workloads, whose cgroups come and go without a word: they are searched for."""
        return self._local.poll(now_s).revision if self._local is not None else 0

    @property
    def moves(self) -> bool:
        """Whether workloads are to be given other CPUs, or just were."""
        return self.pinned is not None and self.pinned.moves

    def errors(self) -> tuple[str, ...]:
        """What is wrong now, a line each."""
        found = self._local.errors() if self._local else ()
        found += self.pinned.errors() if self.pinned else ()
        if self._late is not None:
            pods = self._late.inner
            found += pods.errors() if pods else ("kubepods: no cgroup directory yet",)
        return found

    def notes(self) -> tuple[str, ...]:
        """What the operator should know and is no fault: unknown keys, ties between declarations."""
        return self._local.notes() if self._local else ()

    def failures(self) -> dict[str, int]:
        """Refused answers so far, by source."""
        counts = {"local": self._local.failures} if self._local else {}
        if self._late is not None:
            counts["kubelet"] = self._late.inner.failures if self._late.inner else 0
        return counts


def make_sources(
    flags: Flags,
    host: Host,
    kubepods: KubepodsInput,
    stack: ExitStack,
    node: Callable[[float], NodeInfo],
    kubelet: Callable[[], bytes | str] | None,
    arrived: Callable[[], None],
) -> Sources:
    """kubelet: how to ask the cluster's kubelet for its pods, unless --pods says otherwise; None without a cluster.
    node: by now_s. arrived: called from another thread when the pods may have changed."""
    local = pinned = late = None
    sources: list[Source] = []
    if flags.workloads is not None:
        local = LocalSource(flags.workloads, host, required="workloads" in flags.given)
        file = None if flags.observe else PinFile(flags.state_dir / PINS_FILE)
        # Two partitions cannot change places: the kernel takes none whose CPUs a sibling still has.
        partitions = flags.pinning.partition is not Partition.MEMBER
        pinned = PinnedSource(
            local,
            node,
            file,
            lambda: late.known.pods if late is not None else (),
            stays=lambda pod: partitions and pod.qos is Qos.LSE,
        )
        sources.append(pinned)
    if flags.pods or kubelet is not None:
        late = LatePods(kubepods, lambda tree: _kubelet_pods(flags, host, tree, stack, kubelet, arrived))
        sources.append(late)
    return Sources(tuple(sources), local, pinned, late)


def _kubelet_pods(
    flags: Flags,
    host: Host,
    kubepods: Kubepods,
    stack: ExitStack,
    kubelet: Callable[[], bytes | str] | None,
    arrived: Callable[[], None],
) -> PodsSource:
    source = PodsSource(
        flags.pods or "kubelet",
        kubepods,
        interval_s=flags.kubelet_sync_interval_s,
        timeout_s=flags.kubelet_sync_timeout_s,
        get=None if "pods" in flags.given else kubelet,
        there=lambda cgroup: host.dir("cpu", cgroup).is_dir(),
        below=lambda cgroup: subdirectories(host, cgroup),
        arrived=arrived,
    )
    stack.callback(source.close)
    if source.asks:
        wake = PodWake(host, kubepods, source.request_refresh).start()
        stack.callback(wake.stop)
    return source
