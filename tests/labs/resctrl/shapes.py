"""Machines that the resctrl lab can be: what the hardware has, how the file system is mounted, how old the kernel is.

Numbers are those of machines in the field or of the kernel's own probing code (named beside them). A shape is data;
the rules are in the other modules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MIB = 1 << 20
UNLIMITED_MBPS = 0xFFFFFFFF  # a group's MB value under mba_MBps until somebody writes one


@dataclass(frozen=True, slots=True)
class Era:
    """What differs between kernels; the release that changed it beside each field (that of the next merge window)."""

    name: str
    old_wording: bool = False  # last_cmd_status before v5.0 ("x86/resctrl: Fixup the user-visible strings")
    newest_first: bool = True  # schemata lines in reverse order of resources, since v5.15
    padded: bool = False  # values filled up to the widest one, until v6.15
    many_tasks: bool = True  # comma-separated ids in `tasks`, since v6.7
    sparse_file: bool = True  # info/L3/sparse_masks, since v6.7
    mbps_event_file: bool = True  # mba_MBps_event, since v6.14
    mbps_at_once: bool = True  # MBps values bypass the staging of a schemata write, since v6.1
    rename: bool = True  # MON groups can be moved, since v6.5


ERAS = {
    e.name: e
    for e in (
        Era("6.18"),
        Era("6.6", padded=True, many_tasks=False, sparse_file=False, mbps_event_file=False),
        Era("4.19", True, False, True, False, False, False, False, False),
    )
}


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache that can be partitioned. `size_bytes` is of one instance."""

    name: str  # L3 or L2
    ids: tuple[int, ...]
    cbm_len: int
    num_closids: int
    size_bytes: int
    min_cbm_bits: int = 1
    shareable_bits: int = 0
    sparse: bool = False
    cdp_capable: bool = False
    cdp: bool = False

    @property
    def full(self) -> int:
        return (1 << self.cbm_len) - 1


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Throttling per L3 domain: percent on Intel, eighths of GB/s on AMD, MiB/s under mba_MBps."""

    name: str  # MB or SMBA
    ids: tuple[int, ...]
    num_closids: int
    min_bw: int = 10
    max_bw: int = 100
    gran: int = 10
    linear: bool = True
    throttle_mode: str | None = "max"  # None: no such file (AMD)
    mbps: bool = False

    @property
    def full(self) -> int:
        return self.max_bw


@dataclass(frozen=True, slots=True)
class Monitoring:
    """L3 monitoring. `nodes` maps a cache id to its monitored domains: itself, or its SNC nodes."""

    num_rmids: int
    nodes: dict[int, tuple[int, ...]]
    events: tuple[str, ...] = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
    snc: bool = False
    configurable: bool = False  # AMD's BMEC: *_config files
    scale_bytes: int = 65536  # occupancy thresholds are multiples of this


@dataclass(frozen=True, slots=True)
class Shape:
    """A whole machine as mounted. `resources` in the kernel's order L3, L2, MB, SMBA."""

    name: str
    resources: tuple[Cache | Bandwidth, ...]
    monitoring: Monitoring | None
    cpus: int = 8
    options: tuple[str, ...] = ()  # as /proc/mounts shows them
    pseudo_lock: bool = False  # only CPUs whose prefetcher bits the kernel knows
    era: Era = ERAS["6.18"]


def of(name: str, era: str | None = None) -> Shape:
    """The shape of that name, on a kernel of that era."""
    if name not in SHAPES:
        raise ValueError(f"no machine shape {name!r}; there are {', '.join(SHAPES)}")
    if era is not None and era not in ERAS:
        raise ValueError(f"no kernel era {era!r}; there are {', '.join(ERAS)}")
    return SHAPES[name] if era is None else replace(SHAPES[name], era=ERAS[era])


def _own(ids: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    return {n: (n,) for n in ids}


_TWO = (0, 1)
_FOUR = (0, 1, 2, 3)
_ROME = (*range(8), *range(16, 24))  # two sockets number their L3s 0-7 and 16-23
_L3 = Cache("L3", _TWO, 11, 16, 11 * 3 * MIB, shareable_bits=0x600, cdp_capable=True)
_MB = Bandwidth("MB", _TWO, 8)
_MON = Monitoring(224, _own(_TWO))
_AMD = {"min_bw": 0, "max_bw": 2048, "gran": 1, "linear": False, "throttle_mode": None}
_AMD_L3 = Cache("L3", _FOUR, 16, 16, 32 * MIB, min_cbm_bits=0, sparse=True, cdp_capable=True)

SHAPES = {
    s.name: s
    for s in (
        # 11 ways, two of them shared with I/O; 16 classes in L3 but 8 in MB: the kernel takes the smaller number.
        Shape("intel", (_L3, _MB), _MON),
        Shape("intel-cdp", (replace(_L3, cdp=True), _MB), _MON, options=("cdp",)),
        Shape(
            "intel-mbps",
            (replace(_L3, cbm_len=20, size_bytes=20 * MIB, shareable_bits=0xC0000), replace(_MB, mbps=True)),
            _MON,
            options=("mba_MBps",),
        ),
        Shape(
            "intel-16",
            (Cache("L3", _TWO, 12, 16, 36 * MIB), replace(_MB, num_closids=16, throttle_mode="per-thread")),
            _MON,
        ),
        Shape("intel-sparse", (Cache("L3", _TWO, 15, 8, 30 * MIB, sparse=True), _MB), _MON),
        # arch/x86/kernel/cpu/resctrl/core.c cache_alloc_hsw_probe(): 4 classes, 20 ways, masks of two bits at least.
        Shape(
            "haswell",
            (Cache("L3", _TWO, 20, 4, 20 * MIB, min_cbm_bits=2, shareable_bits=0xC0000),),
            Monitoring(56, _own(_TWO), ("llc_occupancy",)),
        ),
        # pseudo-locking is known for this family (arch/x86/kernel/cpu/resctrl/pseudo_lock.c).
        Shape("intel-l2", (Cache("L2", _FOUR, 8, 4, MIB, cdp_capable=True),), None, pseudo_lock=True),
        Shape("intel-l2cdp", (Cache("L2", _FOUR, 8, 4, MIB, cdp_capable=True, cdp=True),), None, options=("cdpl2",)),
        Shape("intel-snc", (_L3, _MB), Monitoring(112, {0: (0, 1), 1: (2, 3)}, snc=True)),
        Shape(
            "amd-smba",
            (_AMD_L3, Bandwidth("MB", _FOUR, 16, **_AMD), Bandwidth("SMBA", _FOUR, 16, **_AMD)),  # type: ignore[arg-type]
            Monitoring(256, _own(_FOUR), configurable=True),
        ),
        Shape(
            "amd-two-sockets",
            (replace(_AMD_L3, ids=_ROME), Bandwidth("MB", _ROME, 16, **_AMD)),  # type: ignore[arg-type]
            Monitoring(256, _own(_ROME)),
            cpus=64,
        ),
        Shape("few-rmids", (_L3, _MB), Monitoring(4, _own(_TWO))),
        Shape("monitor-only", (), Monitoring(32, _own(_TWO))),
    )
}
