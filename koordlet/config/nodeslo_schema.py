"""Keys, ranges and defaults of `NodeSLO.spec` (spec/api 1.2, ranges of spec/qos 1.3 and spec/ledger 2.4). Data only."""

from __future__ import annotations

from typing import Any, Final

from koordlet.config.schema import (
    FLAG,
    PERCENT,
    Anything,
    At,
    Bool,
    Int,
    ListOf,
    MapOf,
    QuantityText,
    Record,
    Shape,
    Text,
)

_INT32_MAX: Final = 2**31 - 1
_AT_LEAST_0: Final = Int(0)
_AT_LEAST_1: Final = Int(1)
QOS_TEXTS: Final = ("LSE", "LSR", "LS", "BE", "SYSTEM")
PRIORITY_TEXTS: Final = ("koord-prod", "koord-mid", "koord-batch", "koord-free")

THRESHOLD: Final = Record(
    {
        "enable": Bool(),
        "cpuSuppressThresholdPercent": PERCENT,
        "cpuSuppressMinPercent": PERCENT,
        "cpuSuppressPolicy": Text(("cpuset", "cfsQuota")),
        "memoryEvictThresholdPercent": PERCENT,
        "memoryEvictLowerPercent": PERCENT,
        "memoryAllocatableEvictThresholdPercent": _AT_LEAST_0,
        "memoryAllocatableEvictLowerPercent": _AT_LEAST_0,
        "cpuEvictBESatisfactionUpperPercent": PERCENT,
        "cpuEvictBESatisfactionLowerPercent": PERCENT,
        "cpuEvictBEUsageThresholdPercent": PERCENT,
        "cpuEvictTimeWindowSeconds": _AT_LEAST_1,
        "cpuEvictThresholdPercent": PERCENT,
        "cpuEvictLowerPercent": PERCENT,
        "cpuAllocatableEvictThresholdPercent": _AT_LEAST_0,
        "cpuAllocatableEvictLowerPercent": _AT_LEAST_0,
        "cpuEvictPolicy": Text(("evictByRealLimit", "evictByAllocatable")),
        "evictEnabledPriorityThreshold": Int(-_INT32_MAX - 1, _INT32_MAX),
        "allocatableEvictPriorityThreshold": Int(0, 7999),
    }
)

ORDERED: Final = (
    ("memoryEvictLowerPercent", "memoryEvictThresholdPercent"),
    ("memoryAllocatableEvictLowerPercent", "memoryAllocatableEvictThresholdPercent"),
    ("cpuEvictBESatisfactionLowerPercent", "cpuEvictBESatisfactionUpperPercent"),
    ("cpuEvictLowerPercent", "cpuEvictThresholdPercent"),
    ("cpuAllocatableEvictLowerPercent", "cpuAllocatableEvictThresholdPercent"),
)
"""Pairs of THRESHOLD of which the first must be below the second, where both are there."""

_CPU_QOS: Final = Record({"enable": Bool(), "groupIdentity": Int(-1, 2), "schedIdle": FLAG, "coreExpeller": Bool()})
_RESCTRL_QOS: Final = Record(
    {"enable": Bool(), "catRangeStartPercent": PERCENT, "catRangeEndPercent": PERCENT, "mbaPercent": PERCENT}
)
MEMORY_QOS: Final = Record(
    {
        "enable": Bool(),
        "minLimitPercent": PERCENT,
        "lowLimitPercent": PERCENT,
        "throttlingPercent": PERCENT,
        "wmarkRatio": PERCENT,
        "wmarkScalePermill": Int(1, 1000),
        "wmarkMinAdj": Int(-25, 50),
        "priorityEnable": FLAG,
        "priority": Int(0, 12),
        "oomKillGroup": FLAG,
        "pageCacheEnable": Bool(),
        "pageCacheLimitPercent": PERCENT,
        "pageCacheLimitSize": _AT_LEAST_0,
        "pageCacheReclaimSync": Bool(),
    }
)
BLOCK: Final = Record(
    {
        "name": Text(required=True),
        "type": Text(("device", "volumegroup", "podvolume")),
        "ioCfg": Record(
            {
                "readIOPS": _AT_LEAST_0,
                "writeIOPS": _AT_LEAST_0,
                "readBPS": _AT_LEAST_0,
                "writeBPS": _AT_LEAST_0,
                "ioWeightPercent": Int(1, 100),
                "readLatency": _AT_LEAST_0,
                "writeLatency": _AT_LEAST_0,
                "readLatencyPercent": PERCENT,
                "writeLatencyPercent": PERCENT,
                "enableUserModel": Bool(),
                "modelReadBPS": _AT_LEAST_1,
                "modelWriteBPS": _AT_LEAST_1,
                "modelReadSeqIOPS": _AT_LEAST_1,
                "modelWriteSeqIOPS": _AT_LEAST_1,
                "modelReadRandIOPS": _AT_LEAST_1,
                "modelWriteRandIOPS": _AT_LEAST_1,
            }
        ),
    },
    required=("name",),
)
_BLKIO_QOS: Final = Record({"enable": Bool(), "blocks": ListOf(BLOCK)})


class _Bandwidth:
    """Integer: percent of the node's bandwidth. Text: quantity in bits per second."""

    def check(self, value: object, at: At) -> int | str:
        return QuantityText().check(value, at) if isinstance(value, str) else PERCENT.check(value, at)


_NETWORK_QOS: Final = Record(
    {
        "enable": Bool(),
        "ingressRequest": _Bandwidth(),
        "ingressLimit": _Bandwidth(),
        "egressRequest": _Bandwidth(),
        "egressLimit": _Bandwidth(),
    }
)
_CLASS: Final = Record(
    {
        "cpuQOS": _CPU_QOS,
        "memoryQOS": MEMORY_QOS,
        "blkioQOS": _BLKIO_QOS,
        "resctrlQOS": _RESCTRL_QOS,
        "networkQOS": _NETWORK_QOS,
    }
)

QOS_STRATEGY: Final = Record(
    {
        "policies": Record(
            {"cpuPolicy": Text(("groupIdentity", "coreSched")), "netQOSPolicy": Text(("tc", "terway-qos"))}
        ),
        "lsrClass": _CLASS,
        "lsClass": _CLASS,
        "beClass": _CLASS,
        "systemClass": _CLASS,
        "cgroupRoot": _CLASS,
    }
)

BURST: Final = Record(
    {
        "policy": Text(("none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto")),
        "cpuBurstPercent": Int(0, 10_000),
        "cfsQuotaBurstPercent": Int(100),
        "cfsQuotaBurstPeriodSeconds": Int(-1),
        "sharePoolThresholdPercent": PERCENT,
    }
)

SYSTEM: Final = Record(
    {
        "minFreeKbytesFactor": _AT_LEAST_1,
        "watermarkScaleFactor": Int(1, 400),
        "memcgReapBackGround": FLAG,
        "schedGroupIdentityEnabled": FLAG,
        "schedIdleSaverWmark": Int(),
        "schedFeatures": MapOf(Bool()),
        "pageCacheLimitEnabled": FLAG,
        "totalNetworkBandwidth": QuantityText(),
    }
)

HOST_APPLICATIONS: Final = ListOf(
    Record(
        {
            "name": Text(required=True, longest=253),
            "priority": Text(PRIORITY_TEXTS),
            "qos": Text(QOS_TEXTS),
            "cgroupPath": Record(
                {
                    "base": Text(("CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort")),
                    "parentDir": Text(),
                    "relativePath": Text(),
                }
            ),
            "strategy": Anything(),
        },
        required=("name",),
    ),
    longest=1024,
)

SECTIONS: Final[dict[str, Shape]] = {
    "resourceUsedThresholdWithBE": THRESHOLD,
    "resourceQOSStrategy": QOS_STRATEGY,
    "cpuBurstStrategy": BURST,
    "systemStrategy": SYSTEM,
}
"""Sections with built-in defaults."""

SPEC: Final = Record({**SECTIONS, "hostApplications": HOST_APPLICATIONS, "extensions": Anything()})


def _class(bvt: int, expeller: bool, cat_end: int, ratio: int, scale: int, adjust: int) -> dict[str, Any]:
    return {
        "cpuQOS": {"enable": False, "groupIdentity": bvt, "schedIdle": 0, "coreExpeller": expeller},
        "memoryQOS": {
            "enable": False,
            "minLimitPercent": 0,
            "lowLimitPercent": 0,
            "throttlingPercent": 0,
            "wmarkRatio": ratio,
            "wmarkScalePermill": scale,
            "wmarkMinAdj": adjust,
            "priorityEnable": 0,
            "priority": 0,
            "oomKillGroup": 0,
        },
        "blkioQOS": {"enable": False},
        "resctrlQOS": {
            "enable": False,
            "catRangeStartPercent": 0,
            "catRangeEndPercent": cat_end,
            "mbaPercent": 100,
        },
        "networkQOS": {
            "enable": False,
            "ingressRequest": 0,
            "ingressLimit": 0,
            "egressRequest": 0,
            "egressLimit": 0,
        },
    }


NEUTRAL: Final = _class(0, False, 100, 0, 50, 0)
"""What a disabled class block is replaced by."""
NEUTRALISED_CLASSES: Final = ("lsrClass", "lsClass", "beClass")
NEUTRALISED_BLOCKS: Final = ("cpuQOS", "memoryQOS", "resctrlQOS")

DEFAULTS: Final[dict[str, Any]] = {
    "resourceUsedThresholdWithBE": {
        "enable": False,
        "cpuSuppressThresholdPercent": 65,
        "cpuSuppressPolicy": "cpuset",
        "memoryEvictThresholdPercent": 70,
        "cpuEvictPolicy": "evictByRealLimit",
    },
    "resourceQOSStrategy": {
        "policies": {"cpuPolicy": "groupIdentity", "netQOSPolicy": "tc"},
        "lsrClass": _class(2, True, 100, 95, 20, -25),
        "lsClass": _class(2, True, 100, 95, 20, -25),
        "beClass": _class(-1, False, 30, 95, 20, 50),
        "systemClass": _class(0, False, 100, 0, 50, 0),
        "cgroupRoot": {"blkioQOS": {"enable": False}},
    },
    "cpuBurstStrategy": {
        "policy": "none",
        "cpuBurstPercent": 1000,
        "cfsQuotaBurstPercent": 300,
        "cfsQuotaBurstPeriodSeconds": -1,
        "sharePoolThresholdPercent": 50,
    },
    "systemStrategy": {"totalNetworkBandwidth": "0"},
}
