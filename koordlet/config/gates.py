"""Feature gates: `-feature-gates=AllAlpha=true,CPUBurst=false` (spec/api 4.2)."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

from koordlet.config.errors import UsageError
from koordlet.config.gosyntax import parse_bool

BETA: Final = frozenset(
    {
        "BECPUSuppress", "CPUBurst", "RdtResctrl", "NodeTopologyReport", "GroupIdentity", "CPUSetAllocator",
        "BatchResource",
    }
)  # fmt: skip
"""On unless switched off."""

ALPHA: Final = frozenset(
    {
        "AuditEvents", "AuditEventsHTTPHandler", "BECPUManager", "BECPUEvict", "CPUEvict", "CPUAllocatableEvict",
        "BEMemoryEvict", "MemoryEvict", "MemoryAllocatableEvict", "SystemConfig", "ResctrlCollector",
        "CgroupReconcile", "Accelerators", "RDMADevices", "CPICollector", "Libpfm4", "PSICollector",
        "BlkIOReconcile", "ColdPageCollector", "HugePageReport", "PodResourcesProxy", "HamiCoreVGPUMonitor",
        "PerCPUMetric", "NodeMetricPromMetrics", "GPUEnvInject", "RDMADeviceInject", "CPUNormalization",
        "CoreSched", "TerwayQoS", "TCNetworkQoS", "Resctrl", "OOMScoreAdj",
    }
)  # fmt: skip
"""Off unless switched on."""

_STAGES: Final = {"AllAlpha": ALPHA, "AllBeta": BETA}


@dataclass(frozen=True, slots=True)
class Gates:
    """enabled: gates that are on. explicit: gates that were named themselves, on or off, not by their stage."""

    enabled: frozenset[str] = BETA
    explicit: frozenset[str] = frozenset()

    @property
    def effective(self) -> frozenset[str]:
        """What strategies obey.

        beyond: the official manifest's `AllAlpha=true` turns on BECPUManager, with which the reference then
        refuses to suppress at all (spec/api F-06). Here that gate counts only when it was named itself.
        """
        if "BECPUManager" in self.explicit:
            return self.enabled
        return self.enabled - {"BECPUManager"}

    @property
    def warnings(self) -> tuple[str, ...]:
        if self.enabled == self.effective:
            return ()
        return ("gate BECPUManager is on only through AllAlpha and is left out, so that CPU suppression keeps working",)


def parse_gates(text: str) -> Gates:
    """Gates of a comma-separated list; the last of equal names wins, a named gate wins over its stage.

    Raises UsageError for an unknown gate or a value that is no boolean.
    """
    values: dict[str, bool] = {}
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not name and not equals:
            continue
        if name not in _STAGES and name not in ALPHA and name not in BETA:
            near = difflib.get_close_matches(name, [*ALPHA, *BETA, *_STAGES], n=1)
            hint = f", did you mean {near[0]}?" if near else ""
            raise UsageError(f"feature-gates: unknown gate {name[:64]!r}{hint}")
        try:
            values[name] = parse_bool(value)
        except ValueError as error:
            raise UsageError(f"feature-gates: {name}={value[:64]!r}, expected {error}") from error
    enabled = set(BETA)
    for stage, names in _STAGES.items():
        if stage in values:
            enabled = enabled | names if values[stage] else enabled - names
    explicit = frozenset(values.keys() - _STAGES.keys())
    enabled |= {name for name in explicit if values[name]}
    enabled -= {name for name in explicit if not values[name]}
    return Gates(frozenset(enabled), explicit)
