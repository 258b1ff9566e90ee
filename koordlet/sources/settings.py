"""A pod's labels and annotations -> `PodSettings`. They come from strangers: bounded, validated, each on its own.

Every way in uses this one reader: the kubelet's answer, the API server's, and what a runtime hands to a door.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from koordlet.config.documents import read_annotation
from koordlet.config.errors import PolicyError
from koordlet.config.slo_burst import ANNOTATION as CPU_BURST
from koordlet.config.slo_burst import read_burst
from koordlet.config.slo_qosloops import BLKIO_ANNOTATION, MEMORY_ANNOTATION, read_blkio, read_memory
from koordlet.model.settings import EVICTION_POLICY, PodSettings
from koordlet.sources import annotations as known
from koordlet.sources.pod_resctrl import RESCTRL, pod_resctrl

Read = Callable[[Any], Any]
"""A decoded annotation -> the field's value. Raises PolicyError or ValueError."""

READERS: Final[dict[str, tuple[str, Read]]] = {
    known.RESOURCE_STATUS: ("resource_status", known.resource_status),
    known.EXTENDED: ("extended", known.extended),
    known.CPU_QOS: ("cpu_qos", known.cpu_qos),
    known.DEVICES: ("devices", known.devices),
    known.NETWORK_QOS: ("network_qos", known.network_qos),
    known.OOM_SCORE_ADJ: ("oom_score_adj", known.oom_score_adj),
    EVICTION_POLICY: ("evict_by", known.eviction_policy),
    known.EVICTION_PRIORITY: ("evict_priority", known.eviction_priority),
    known.OOM_SCORE_ADJ_SPEC: ("oom_score_adj_spec", known.oom_score_adj_spec),
    CPU_BURST: ("cpu_burst", read_burst),
    RESCTRL: ("resctrl", pod_resctrl),
    MEMORY_ANNOTATION: ("memory_qos", read_memory),
    BLKIO_ANNOTATION: ("blkio", read_blkio),
}
"""Annotation key -> (field of PodSettings, reader). One row per annotation that holds JSON."""

LABELS: Final[dict[str, str]] = {
    "koordinator.sh/core-sched-group-id": "core_sched_group",
    "koordinator.sh/core-sched-policy": "core_sched_policy",
    "koordinator.sh/gpu-isolation-provider": "gpu_isolation",
}
"""Label key -> field of PodSettings, for labels that are taken as they stand."""
_LONGEST_LABEL: Final = 63
READ_LABELS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    known.EVICTION_ENABLED: ("evict_enabled", {"true": True, "false": False}.get),
    known.SUB_PRIORITY: ("sub_priority", known.sub_priority),
}
"""Label key -> (field, reader; None is as if the label were not there)."""

NOTHING: Final = PodSettings()


def read_settings(labels: Mapping[str, str], annotations: Mapping[str, str]) -> PodSettings:
    """What is malformed counts as absent and is named in `faults`. Pods without any share one object."""
    values: dict[str, Any] = {}
    faults: list[tuple[str, str]] = []
    for key, name in LABELS.items():
        label = labels.get(key)
        if label is not None and len(label) <= _LONGEST_LABEL and label.isprintable():
            values[name] = label
    for key, (name, read) in READERS.items():
        text = annotations.get(key)
        if text is None:
            continue
        try:
            document = read_annotation(key, text)
            if document is not None:
                values[name] = read(document)
        except (PolicyError, ValueError) as error:
            faults.append((key, str(error)))
    for key, (name, read) in READ_LABELS.items():
        text = labels.get(key)
        if text is not None and (value := read(text)) is not None:
            values[name] = value
    if not values and not faults:
        return NOTHING
    return PodSettings(faults=tuple(faults), **values)
