"""Keeps the node's NodeResourceTopology up to date: written first of all, only when it changed, never deleted.

A cpuset that the scheduler gives away before the object is there stays uncounted (spec/ledger 8.9), so this is the
first publication of a start. It waits for three things only: the machine's CPUs, the Node object, and the pods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from koordlet.decide.pools import share_pools
from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import Host
from koordlet.kernel.hugepages import read_hugepages
from koordlet.kernel.topology import cpu_basic_info
from koordlet.kube.client import Api
from koordlet.kube.errors import ApiError
from koordlet.kube.objects import TOPOLOGIES, NodeObject
from koordlet.model.kubelet import KubeletConfig
from koordlet.model.status import Snapshot
from koordlet.model.topology import Topology
from koordlet.model.view import NodeInfo
from koordlet.report.owned import keep
from koordlet.report.topology import NUMA_RESERVATION, CpuInfo, TopologyFacts, desired, merged
from koordlet.report.topology_node import kept_back, reservation, system_qos
from koordlet.report.topology_zones import zones
from koordlet.sources.kubeletconfig import KubeletConfigError, decode_configz
from koordlet.sources.kubeletcpus import KubeletCheckpoint

log = structlog.get_logger(__name__)

CHECK_EVERY_S: Final = 60.0
"""Somebody else may have changed or removed the object, and a kubelet may have a new configuration."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What is read from files, again with every change of the topology."""

    cpu: CpuInfo
    hugepages: dict[int, dict[int, int]] | None


class TopologyPublication:
    """A `Publication`. node: the Node object, None until it is known.

    kubelet: the answer of its /configz (may block; raises ApiError); None where it is not to be asked.
    hugepages: gate HugePageReport. interval_s: how often to look whether something changed.
    """

    name = "noderesourcetopology"

    def __init__(
        self,
        host: Host,
        node: Callable[[], NodeObject | None],
        kubelet: Callable[[], bytes] | None,
        *,
        interval_s: float = 3.0,
        hugepages: bool = False,
    ) -> None:
        self._host, self._node, self._kubelet = host, node, kubelet
        self._interval_s, self._hugepages = interval_s, hugepages
        self._looked_s = self._checked_s = self._asked_s = float("-inf")
        self._config: KubeletConfig | None = None
        self._checkpoint = KubeletCheckpoint(host)
        self._machine: tuple[Topology, float, Machine] | None = None
        self._built: tuple[object, dict[str, Any]] = (None, {})
        self._written: dict[str, Any] | None = None

    def due(self, snapshot: Snapshot, now_s: float) -> bool:
        if now_s - self._looked_s < self._interval_s:
            return False
        self._looked_s = now_s
        node, view = self._node(), snapshot.view
        if node is None or not node.metadata.uid or view.node.topology is None or view.pods.at_s is None:
            return False
        if self._written is None or now_s - self._checked_s >= CHECK_EVERY_S:
            return True
        return self._build(node, snapshot, view.node.topology, now_s) != self._written

    def publish(self, api: Api, snapshot: Snapshot, now_s: float) -> None:
        node, topology = self._node(), snapshot.view.node.topology
        if node is None or topology is None:
            return
        self._ask_kubelet(topology, now_s)
        wanted = self._build(node, snapshot, topology, now_s)
        keep(
            api, TOPOLOGIES, node.metadata.name, lambda current: wanted if current is None else merged(current, wanted)
        )
        self._written, self._checked_s = wanted, now_s

    def _ask_kubelet(self, topology: Topology, now_s: float) -> None:
        """A kubelet that cannot be reached keeps what it said before; before the first answer nothing is written."""
        if self._kubelet is None or now_s - self._asked_s < CHECK_EVERY_S:
            return
        try:
            self._config = _config(self._kubelet())
        except ApiError as error:
            if self._config is None and error.status not in (401, 403, 404):
                raise
            if self._config is None:  # it will not tell: its checkpoint knows the policy, though not the options
                log.warning("kubelet.config_refused", error=str(error), instead="cpu_manager_state")
                self._config = KubeletConfig(cpu_policy=self._checkpoint.read(topology.online).policy)
        self._asked_s = now_s

    def _build(self, node: NodeObject, snapshot: Snapshot, topology: Topology, now_s: float) -> dict[str, Any]:
        """The wanted object; the same one while nothing that it is made of changed. Raises ApiError."""
        view = snapshot.view
        known = self._checkpoint.read(topology.online)
        if known.fault and (self._config is None or self._config.cpu_policy == "static"):
            raise ApiError(0, "Machine", known.fault)
        machine = self._read_machine(topology, now_s)
        inputs = (node, view.node, view.pods.revision, known, machine, self._config)
        if inputs != self._built[0]:
            try:
                wanted = desired(
                    self._facts(node, snapshot, replace(view.node, exclusive=known.exclusive), topology, machine)
                )
            except ValueError as error:
                raise ApiError(0, "Machine", str(error)) from error
            self._built = (inputs, self._built[1] if wanted == self._built[1] else wanted)
        return self._built[1]

    def _facts(
        self, node: NodeObject, snapshot: Snapshot, info: NodeInfo, topology: Topology, machine: Machine
    ) -> TopologyFacts:
        labels, annotations = node.metadata.labels or {}, node.metadata.annotations or {}
        cpus: dict[int, int] = {}
        for cpu in topology.cpus:
            cpus[cpu.node] = cpus.get(cpu.node, 0) + 1
        capacity, allocatable = node.status.capacity or {}, node.status.allocatable or {}
        view = snapshot.view
        return TopologyFacts(
            node=node.metadata.name,
            owner_uid=node.metadata.uid,
            topology=topology,
            zones=zones(
                cpus,
                {numa.id: numa.memory_bytes for numa in topology.nodes},
                machine.hugepages,
                *kept_back(labels, capacity, allocatable),
            ),
            pools=share_pools(topology, view.pods.pods, info),
            cpu=machine.cpu,
            kubelet=self._config,
            reservation=reservation(annotations, topology),
            system_qos=system_qos(annotations),
            numa_reservation=labels.get(NUMA_RESERVATION),
        )

    def _read_machine(self, topology: Topology, now_s: float) -> Machine:
        """Raises ApiError when a file cannot be read: then nothing is written, and the next try is soon."""
        known = self._machine
        if known is not None and known[0] == topology and now_s - known[1] < CHECK_EVERY_S:
            return known[2]
        try:
            machine = read_machine(self._host, topology, hugepages=self._hugepages)
        except (OSError, KernelFileError, ValueError) as error:
            raise ApiError(0, "Machine", str(error)) from error
        self._machine = (topology, now_s, machine)
        return machine


def _config(answer: bytes) -> KubeletConfig:
    try:
        return decode_configz(answer)
    except KubeletConfigError as error:
        raise ApiError(200, "Malformed", str(error)) from error


def read_machine(host: Host, topology: Topology, *, hugepages: bool) -> Machine:
    """Raises OSError, KernelFileError."""
    basic = cpu_basic_info(host)
    try:
        mask = (host.sys_fs_root / "resctrl/info/L3/cbm_mask").read_text("ascii", "replace").strip()
    except OSError:
        mask = ""  # no resource control, or none of caches
    pages = read_hugepages(host, [numa.id for numa in topology.nodes]) if hugepages else None
    return Machine(CpuInfo(basic.model, basic.vendor, basic.smt_active, basic.turbo, mask[:64]), pages)
