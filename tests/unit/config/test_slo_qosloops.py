"""`memoryQOS`, `blkioQOS`, `systemStrategy` and their annotations."""

from __future__ import annotations

from typing import Any

import pytest

from koordlet.config.errors import PolicyError
from koordlet.config.nodeslo import decode
from koordlet.config.slo_qosloops import BLKIO_ANNOTATION, MEMORY_ANNOTATION
from koordlet.model.blkio import BlkioClasses, Block, BlockType, IoCfg
from koordlet.model.memory_qos import RECOMMENDED, MemoryClasses, MemoryPolicy, MemoryQos, MemorySettings
from koordlet.model.slo import NodeSlo
from koordlet.model.system import SystemStrategy
from koordlet.sources.settings import read_settings


def slo(**spec: Any) -> NodeSlo:
    return decode(spec, host_app_dir=lambda name, qos, path: name)


def test_nothing_is_asked_by_default() -> None:
    found = slo()
    assert found.memory == MemoryClasses()
    assert found.blkio == BlkioClasses()
    assert found.system == SystemStrategy()


def test_an_enabled_class_has_the_recommended_values_where_nothing_is_said() -> None:
    found = slo(resourceQOSStrategy={"lsClass": {"memoryQOS": {"enable": True, "minLimitPercent": 30}}}).memory
    assert found.ls.enable
    assert found.ls.qos == RECOMMENDED["LS"].under(MemoryQos(min_percent=30))
    assert found.be.qos == MemoryQos()
    for name in ("LSR", "LS", "BE", "SYSTEM"):
        key = {"LSR": "lsrClass", "LS": "lsClass", "BE": "beClass", "SYSTEM": "systemClass"}[name]
        classes = slo(resourceQOSStrategy={key: {"memoryQOS": {"enable": True}}}).memory
        assert RECOMMENDED[name] in (classes.lsr.qos, classes.ls.qos, classes.be.qos, classes.system.qos)


BLOCKS = {"enable": True, "blocks": [{"name": "/dev/vda", "ioCfg": {"readIOPS": 5000, "modelReadBPS": 7}}]}
VDA = Block("/dev/vda", BlockType.DEVICE, IoCfg(read_iops=5000, model=(("rbps", 7),)))


def test_blocks_of_classes() -> None:
    strategy = {"beClass": {"blkioQOS": BLOCKS}, "lsClass": {"blkioQOS": BLOCKS}, "cgroupRoot": {"blkioQOS": BLOCKS}}
    assert slo(resourceQOSStrategy=strategy).blkio == BlkioClasses((VDA,), (VDA,), ("lsClass",))
    off = {"beClass": {"blkioQOS": {**BLOCKS, "enable": False}}}
    assert slo(resourceQOSStrategy=off).blkio == BlkioClasses()


def test_system_strategy() -> None:
    found = slo(systemStrategy={"minFreeKbytesFactor": 50, "schedFeatures": {"NEXT_BUDDY": True, "A_B2": False}})
    assert found.system == SystemStrategy(50, sched_features=(("A_B2", False), ("NEXT_BUDDY", True)))


@pytest.mark.parametrize(
    "spec",
    [
        {"systemStrategy": {"schedFeatures": {"NO_NEXT_BUDDY": True}}},
        {"systemStrategy": {"schedFeatures": {"../x": True}}},
        {"systemStrategy": {"watermarkScaleFactor": 500}},
        {"resourceQOSStrategy": {"beClass": {"blkioQOS": {"blocks": [{"type": "device"}]}}}},
        {"resourceQOSStrategy": {"beClass": {"memoryQOS": {"wmarkMinAdj": 51}}}},
    ],
)
def test_bad_documents_are_refused_as_a_whole(spec: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        slo(**spec)


def test_memory_annotation() -> None:
    found = read_settings({}, {MEMORY_ANNOTATION: '{"policy":"auto","priority":3,"pageCacheLimitSize":5}'})
    assert found.memory_qos == MemorySettings(MemoryPolicy.AUTO, MemoryQos(priority=3, pagecache_bytes=5))
    assert read_settings({}, {MEMORY_ANNOTATION: '{"policy":""}'}).memory_qos == MemorySettings()


def test_blkio_annotation() -> None:
    text = '{"blocks":[{"name":"data","type":"podvolume","ioCfg":{"ioWeightPercent":5}}]}'
    found = read_settings({}, {BLKIO_ANNOTATION: text})
    assert found.blkio == (Block("data", BlockType.POD_VOLUME, IoCfg(weight_percent=5)),)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (MEMORY_ANNOTATION, '{"policy":"sometimes"}'),
        (MEMORY_ANNOTATION, '{"minLimitPercent":101}'),
        (MEMORY_ANNOTATION, "[1]"),
        (MEMORY_ANNOTATION, "{"),
        (BLKIO_ANNOTATION, '{"blocks":[{"name":"a","ioCfg":{"readBPS":-1}}]}'),
        (BLKIO_ANNOTATION, '{"blocks":' + str([{"name": "a"}] * 65).replace("'", '"') + "}"),
        (BLKIO_ANNOTATION, '{"blocks":[{"name":"a\\u0000"}]}'),
    ],
)
def test_malformed_annotations_are_absent_and_named(key: str, text: str) -> None:
    found = read_settings({}, {key: text})
    assert (found.memory_qos, found.blkio) == (None, None)
    assert found.fault(key)
