"""QoS and priority classes and how they are derived (spec/api 2.1). Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class KubeQos(StrEnum):
    """Kubernetes' own QoS class of a pod."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BESTEFFORT = "BestEffort"


class Qos(StrEnum):
    """Koordinator QoS class, the value of label `koordinator.sh/qosClass`. Case-sensitive."""

    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"


class PriorityClass(StrEnum):
    """Koordinator priority band; NONE is outside every band."""

    PROD = "koord-prod"
    MID = "koord-mid"
    BATCH = "koord-batch"
    FREE = "koord-free"
    NONE = ""


_BANDS: Final = (
    (9000, 9999, PriorityClass.PROD),
    (7000, 7999, PriorityClass.MID),
    (5000, 5999, PriorityClass.BATCH),
    (3000, 3999, PriorityClass.FREE),
)
_DEFAULT_VALUE: Final = {
    PriorityClass.PROD: 9500,
    PriorityClass.MID: 7500,
    PriorityClass.BATCH: 5500,
    PriorityClass.FREE: 3500,
    PriorityClass.NONE: 0,
}
_BY_KUBE: Final = {KubeQos.GUARANTEED: Qos.LSR, KubeQos.BURSTABLE: Qos.LS, KubeQos.BESTEFFORT: Qos.BE}


def raw_qos(label: str | None) -> Qos | None:
    """The class a label names; any other text is no class, not an error."""
    try:
        return Qos(label) if label else None
    except ValueError:
        return None


def default_qos(raw: Qos | None, kube: KubeQos) -> Qos:
    """Raw class, else the one that Kubernetes' class stands for."""
    return raw or _BY_KUBE[kube]


def raw_priority_class(label: str | None, priority: int | None) -> PriorityClass:
    """Label wins, even when its value is unknown (then NONE); else the band of spec.priority."""
    if label is not None:
        try:
            return PriorityClass(label)
        except ValueError:
            return PriorityClass.NONE
    for low, high, band in _BANDS:
        if priority is not None and low <= priority <= high:
            return band
    return PriorityClass.NONE


def default_priority_class(raw: PriorityClass, qos: Qos) -> PriorityClass:
    """Raw class, else prod for the online QoS classes and batch for BE."""
    if raw is not PriorityClass.NONE:
        return raw
    return PriorityClass.BATCH if qos is Qos.BE else PriorityClass.PROD


def priority_value(priority: int | None, default_class: PriorityClass) -> int:
    """spec.priority if set and not zero, else the default value of the class."""
    return priority or _DEFAULT_VALUE[default_class]
