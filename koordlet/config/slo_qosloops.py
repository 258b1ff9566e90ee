"""`memoryQOS`, `blkioQOS` and `systemStrategy`, typed, and the annotations of the first two (spec/qos 8, 11, 12)."""

from __future__ import annotations

import re
from typing import Any, Final

from koordlet.config import nodeslo_schema as table
from koordlet.config.schema import At, ListOf, Record, Text
from koordlet.model.blkio import BlkioClasses, Block, BlockType, IoCfg
from koordlet.model.memory_qos import MemoryClass, MemoryClasses, MemoryPolicy, MemoryQos, MemorySettings
from koordlet.model.system import SystemStrategy

MEMORY_ANNOTATION: Final = "koordinator.sh/memoryQOS"
BLKIO_ANNOTATION: Final = "koordinator.sh/blkioQOS"
MAX_BLOCKS: Final = 64


def memory_classes(classes: dict[str, Any]) -> MemoryClasses:
    """From `resourceQOSStrategy`."""
    return MemoryClasses(*(_memory_class(classes[name]) for name in ("lsrClass", "lsClass", "beClass", "systemClass")))


def blkio_classes(classes: dict[str, Any]) -> BlkioClasses:
    """From `resourceQOSStrategy`."""
    refused = [name for name in ("lsrClass", "lsClass", "systemClass") if _blocks(classes.get(name, {}))]
    return BlkioClasses(_blocks(classes["beClass"]), _blocks(classes.get("cgroupRoot", {})), tuple(refused))


def system_strategy(section: dict[str, Any], at: At) -> SystemStrategy:
    features = section.get("schedFeatures", {})
    where = at.below("schedFeatures")
    for name in features:
        if not _FEATURE.fullmatch(name):
            raise (where.below(name).error(name, "a scheduler feature without NO_, such as NEXT_BUDDY"))
    return SystemStrategy(
        min_free_factor=section.get("minFreeKbytesFactor"),
        watermark_scale=section.get("watermarkScaleFactor"),
        memcg_reap=section.get("memcgReapBackGround"),
        group_identity=section.get("schedGroupIdentityEnabled"),
        idle_saver_wmark_ns=section.get("schedIdleSaverWmark"),
        pagecache_limit=section.get("pageCacheLimitEnabled"),
        sched_features=tuple(sorted(features.items())),
    )


def read_memory(document: object) -> MemorySettings:
    """A decoded annotation. Raises PolicyError."""
    found = _MEMORY.check(document, At(MEMORY_ANNOTATION))
    return MemorySettings(MemoryPolicy(found.get("policy", "default")), _memory_qos(found))


def read_blkio(document: object) -> tuple[Block, ...]:
    """A decoded annotation. Raises PolicyError."""
    at = At(BLKIO_ANNOTATION)
    found = _BLKIO.check(document, at)
    return tuple(_block(block) for block in found.get("blocks", ()))


def _memory_class(blocks: dict[str, Any]) -> MemoryClass:
    found = blocks["memoryQOS"]
    return MemoryClass(found["enable"], _memory_qos(found) if found["enable"] else MemoryQos())


def _memory_qos(found: dict[str, Any]) -> MemoryQos:
    return MemoryQos(
        min_percent=found.get("minLimitPercent"),
        low_percent=found.get("lowLimitPercent"),
        throttling_percent=found.get("throttlingPercent"),
        wmark_ratio=found.get("wmarkRatio"),
        wmark_scale_permill=found.get("wmarkScalePermill"),
        wmark_min_adj=found.get("wmarkMinAdj"),
        priority_enable=found.get("priorityEnable"),
        priority=found.get("priority"),
        oom_kill_group=found.get("oomKillGroup"),
        pagecache_enable=found.get("pageCacheEnable"),
        pagecache_percent=found.get("pageCacheLimitPercent"),
        pagecache_bytes=found.get("pageCacheLimitSize"),
        pagecache_sync=found.get("pageCacheReclaimSync"),
    )


def _blocks(blocks: dict[str, Any]) -> tuple[Block, ...]:
    found = blocks.get("blkioQOS") or {}
    return tuple(_block(block) for block in found.get("blocks", ())) if found.get("enable") else ()


def _block(block: dict[str, Any]) -> Block:
    cfg = block.get("ioCfg") or {}
    return Block(
        name=block.get("name", ""),
        type=BlockType(block.get("type") or "device"),
        cfg=IoCfg(
            read_iops=cfg.get("readIOPS"),
            write_iops=cfg.get("writeIOPS"),
            read_bps=cfg.get("readBPS"),
            write_bps=cfg.get("writeBPS"),
            weight_percent=cfg.get("ioWeightPercent"),
            read_latency_us=cfg.get("readLatency", 3000),
            write_latency_us=cfg.get("writeLatency", 3000),
            read_latency_percent=cfg.get("readLatencyPercent", 95),
            write_latency_percent=cfg.get("writeLatencyPercent", 95),
            user_model=cfg.get("enableUserModel", False),
            model=tuple((kernel, cfg[key]) for key, kernel in _MODEL.items() if key in cfg),
        ),
    )


_MODEL: Final = {
    "modelReadBPS": "rbps",
    "modelReadSeqIOPS": "rseqiops",
    "modelReadRandIOPS": "rrandiops",
    "modelWriteBPS": "wbps",
    "modelWriteSeqIOPS": "wseqiops",
    "modelWriteRandIOPS": "wrandiops",
}
_FEATURE: Final = re.compile(r"(?!NO_)[A-Z][A-Z0-9_]{0,63}")
_MEMORY: Final = Record({**table.MEMORY_QOS.fields, "policy": Text(tuple(policy.value for policy in MemoryPolicy))})
_BLKIO: Final = Record({"blocks": ListOf(table.BLOCK, longest=MAX_BLOCKS)})
