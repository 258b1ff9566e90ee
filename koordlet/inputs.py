"""What the loop asks besides workloads and samples: policy, node facts, capabilities.

Each provider keeps its last good answer and looks again when its time has come; none blocks. Files are followed live.
The kubelet's cgroup driver may be unknown at the start (kubepods not made yet): it is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol, TypeVar

import structlog

from koordlet.config.flags import Flags
from koordlet.config.nodefile import KUBELET_POLICY, NodeFile, load_node, node_facts
from koordlet.config.nodeslo import LoadedPolicy, load_policy
from koordlet.config.reload import Watched
from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.irq import read_irqs
from koordlet.kernel.kubepods import Driver, Kubepods, detect_driver, host_app_dir
from koordlet.kernel.probe import probe
from koordlet.kernel.proc import read_node_memory
from koordlet.kernel.topology import read_topology
from koordlet.kernel.verbs import read_verbs
from koordlet.kube.objects import NodeObject
from koordlet.model.cpuset import CpuSet
from koordlet.model.pod import PodSet
from koordlet.model.podevent import Device
from koordlet.model.support import Support
from koordlet.model.topology import Topology
from koordlet.model.view import NodeInfo, Policy
from koordlet.sense.kept import KeptFile
from koordlet.sources.followed import Followed
from koordlet.sources.kubelet import PodsSource
from koordlet.sources.kubeletcpus import Checkpoint, KubeletCheckpoint

log = structlog.get_logger(__name__)

PROBE_EVERY_S: Final = 60.0
DRIVER_EVERY_S: Final = 10.0
T_co = TypeVar("T_co", covariant=True)
FollowedNode = Followed[NodeObject, NodeFile]


class KubepodsInput:
    """The kubelet's tree, when a kubelet source is configured. `get` is None while the driver is not known."""

    def __init__(self, flags: Flags, host: Host) -> None:
        self._host = host
        self._root = flags.cgroup_root
        self._asked_s = float("-inf")
        self.wanted = bool(flags.pods) or not flags.standalone
        self.get: Kubepods | None = None
        if flags.cgroup_driver != "auto":
            self.get = Kubepods(Driver(flags.cgroup_driver), flags.cgroup_root)

    def poll(self, now_s: float) -> bool:
        """Look for the kubelet's directories; True when they were found just now."""
        if not self.wanted or self.get is not None or now_s - self._asked_s < DRIVER_EVERY_S:
            return False
        first, self._asked_s = self._asked_s == float("-inf"), now_s
        driver = detect_driver(self._host, self._root)
        if driver is None:
            if first:
                log.warning("kubepods.missing", cgroup_root=self._root, retry_s=DRIVER_EVERY_S)
            return False
        self.get = Kubepods(driver, self._root)
        log.info("kubepods.found", driver=driver.value, root=self.get.root())
        return True

    def host_app_dir(self, name: str, qos: str, cgroup_path: dict[str, str] | None) -> str:
        return host_app_dir(self.get, name, qos, cgroup_path)


class Follow(Protocol[T_co]):
    """A followed file or API object: its last good value, and what is wrong with it now."""

    @property
    def value(self) -> T_co: ...
    @property
    def error(self) -> str: ...
    @property
    def failures(self) -> int: ...

    def poll(self, now_s: float) -> bool: ...


class LatePods:
    """The kubelet's pods; no pods and no age until the driver is known, since their directories depend on it."""

    def __init__(self, kubepods: KubepodsInput, make: Callable[[Kubepods], PodsSource]) -> None:
        self._kubepods = kubepods
        self._make = make
        self.inner: PodsSource | None = None
        self.known = PodSet()

    def poll(self, now_s: float) -> PodSet:
        self._kubepods.poll(now_s)
        if self.inner is None:
            if self._kubepods.get is None:
                return PodSet()
            self.inner = self._make(self._kubepods.get)
        self.known = self.inner.poll(now_s)
        return self.known


class PolicyInput:
    """`Policy` from flags and the followed policy: the file's, else the NodeSLO's. refused: called for every refused
    read of it. hooked: a runtime asks us now."""

    def __init__(
        self,
        flags: Flags,
        kubepods: KubepodsInput,
        refused: Callable[[], None],
        node_slo: Follow[LoadedPolicy | None] | None = None,
        hooked: Callable[[], bool] = lambda: False,
    ) -> None:
        self._flags, self._hooked = flags, hooked
        self._refused, self._failures = refused, 0
        self._file = node_slo
        if flags.policy is not None:
            required = "policy" in flags.given
            self._file = Watched(
                flags.policy, lambda path: load_policy(path, kubepods.host_app_dir), None, required=required
            )
        self._polled_s = float("-inf")
        self.notes: tuple[str, ...] = ()
        self.current = self._build(None)

    def poll(self, now_s: float) -> Policy:
        if self._file is not None and now_s != self._polled_s:
            self._polled_s = now_s
            if self._file.poll(now_s):
                loaded = self._file.value
                self.notes = loaded.warnings if loaded else ()
                for warning in self.notes:
                    log.warning("policy.warning", what=warning)
                self.current = self._build(loaded)
            if self._file.failures != self._failures:
                self._failures = self._file.failures
                self._refused()
        if self.current.hooked != self._hooked():
            self.current = replace(self.current, hooked=self._hooked())
        return self.current

    def _build(self, loaded: LoadedPolicy | None) -> Policy:
        return Policy(
            slo=loaded.slo if loaded else None,
            gates=self._flags.gates.effective,
            identity=self._flags.identity,
            idle_on_be_pods=self._flags.idle_on_be_pods,
            kubelet=not self._flags.standalone,
            floor_percent=self._flags.stale_floor_percent,
            resctrl_monitor=self._flags.enable_resctrl_collector and "ResctrlCollector" in self._flags.gates.effective,
            resctrl_dynamic=self._flags.resctrl_dynamic,
            amd_bandwidth_units=self._flags.mba_amd_units,
            pinning=self._flags.pinning,
            unset_cpu_quota=not self._flags.disable_unset_cpu_quota,
            hami_library=self._flags.hami_library,
            cpu_evict_cool_s=self._flags.cpu_evict_cool_s,
            memory_evict_cool_s=self._flags.memory_evict_cool_s,
            evict_min_age_s=self._flags.evict_min_age_s,
            memory_ladder=self._flags.memory_ladder,
            memory_watch=self._flags.memory_watch,
            pods_fresh_s=3 * max(self._flags.kubelet_sync_interval_s, 10.0),
        )

    @property
    def error(self) -> str:
        return self._file.error if self._file else ""


class NodeInput:
    """`NodeInfo` from the node file, else the Node object, and the machine. The topology is read again at its own
    interval, and in the tick in which a CPU was plugged or unplugged. Before the Node object is known, where there is
    to be one, capacity is None."""

    def __init__(
        self, flags: Flags, host: Host, count: Callable[[str, bool], None], node: FollowedNode | None = None
    ) -> None:
        self._flags, self._host, self._count = flags, host, count
        self._object = node if flags.node is None else None
        self._file: Follow[NodeFile] | None = self._object
        if flags.node is not None:
            self._file = Watched(flags.node, load_node, NodeFile(), required="node" in flags.given)
        self._read_s = float("-inf")
        self._polled_s = float("-inf")
        self._online, self._online_text = KeptFile(host.sys_root / "devices/system/cpu/online"), b""
        self._topology: Topology | None = None
        self._rdma: tuple[tuple[str, Device], ...] = ()
        self._memory_bytes = 0
        self._kubelet = KubeletCheckpoint(host) if flags.pods or self._object is not None else None
        self._checkpoint = Checkpoint()
        self._info = NodeInfo(name=flags.node_name)
        self._warned: tuple[str, ...] = ()

    def poll(self, now_s: float) -> NodeInfo:
        if now_s == self._polled_s:  # whoever places workloads asks before the loop does
            return self._info
        self._polled_s = now_s
        changed = self._file.poll(now_s) if self._file is not None else False
        online = self._online.read() or b""
        if online != self._online_text or now_s - self._read_s >= self._flags.collect_node_cpu_info_interval_s:
            self._read_s, self._online_text = now_s, online
            self._read_machine()
            changed = True
        if self._kubelet is not None:
            known = self._kubelet.read(self._topology.online if self._topology else CpuSet())
            changed, self._checkpoint = changed or known is not self._checkpoint, known
        if changed:
            self._build()
        return self._info

    def _read_machine(self) -> None:
        try:
            self._topology = read_topology(self._host)
            self._count("cpu_info", True)
            self._count("numa_info", True)
        except (OSError, KernelFileError) as error:
            self._count("cpu_info", False)
            log.warning("topology.failed", error=str(error))
        if "RDMADeviceInject" in self._flags.gates.enabled:
            self._rdma = read_verbs(self._host)
        try:
            memory = read_node_memory(self._host)
            self._memory_bytes = memory.total_bytes if memory else 0
        except (OSError, KernelFileError) as error:
            log.warning("meminfo.failed", error=str(error))

    def _build(self) -> None:
        loaded = self._file.value if self._file else NodeFile()
        online = self._topology.online if self._topology else CpuSet()
        ratio = self._info.cpu_normalization_ratio
        facts = node_facts(loaded.raw, online, self._memory_bytes, self._topology, ratio_before=ratio)
        warnings = loaded.warnings + facts.warnings
        for warning in warnings:
            if warning not in self._warned:
                log.warning("node.warning", what=warning)
        self._warned = warnings
        info = facts.info
        if self._object is not None and KUBELET_POLICY not in loaded.raw.get("metadata", {}).get("annotations", {}):
            info = replace(info, kubelet_policy=_policy(self._checkpoint))
        if self._object is not None and not self._object.seen:
            info = replace(info, capacity_mcpu=None, capacity_bytes=None)
        self._info = replace(
            info,
            name=info.name or self._flags.node_name,
            cgroup_v2=self._host.version is CgroupVersion.V2,
            rdma=self._rdma,
            exclusive=self._checkpoint.exclusive,
            irqs=read_irqs(self._host) if self._flags.pinning.irq else (),
        )

    @property
    def error(self) -> str:
        return self._file.error if self._file else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the node's facts counts as absent, and why."""
        return self._warned


def _policy(checkpoint: Checkpoint) -> str | None:
    """By the kubelet's own record. None when unreadable: taking it for "none" would move a static node's containers."""
    return checkpoint.policy if not checkpoint.fault and checkpoint.policy in ("none", "static") else None


class SupportInput:
    """Capability table, probed again now and then, because kubepods or a controller may appear later."""

    def __init__(self, host: Host, be_dir: Callable[[], str | None], changed: Callable[[], None]) -> None:
        self._host, self._be_dir, self._changed = host, be_dir, changed
        self._probed: tuple[float, str | None] | None = None
        self._support = Support()

    def poll(self, now_s: float) -> Support:
        be_dir = self._be_dir()
        if self._probed is None or be_dir != self._probed[1] or now_s - self._probed[0] >= PROBE_EVERY_S:
            self._probed = (now_s, be_dir)
            found = probe(self._host, be_dir)
            if found != self._support:
                self._support = found
                self._changed()
        return self._support
