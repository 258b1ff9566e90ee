import pytest

from koordlet.model.pod import Pod
from koordlet.model.qos import KubeQos, PriorityClass, Qos, default_qos, raw_qos

G, B, E = KubeQos.GUARANTEED, KubeQos.BURSTABLE, KubeQos.BESTEFFORT


@pytest.mark.parametrize(
    ("label", "kube", "raw", "default"),
    [
        ("be", B, None, Qos.LS),  # V-24
        (None, G, None, Qos.LSR),  # V-24
        (None, E, None, Qos.BE),  # V-24
        ("SYSTEM", B, Qos.SYSTEM, Qos.SYSTEM),  # V-24
        ("", B, None, Qos.LS),
        ("LSE", E, Qos.LSE, Qos.LSE),
    ],
)
def test_qos(label: str | None, kube: KubeQos, raw: Qos | None, default: Qos) -> None:
    assert raw_qos(label) is raw
    assert default_qos(raw_qos(label), kube) is default


PROD, MID, BATCH = PriorityClass.PROD, PriorityClass.MID, PriorityClass.BATCH
PRIORITIES = [  # kube QoS, qosClass, priority-class, spec.priority -> class, value
    (B, None, None, 2_000_001_000, PROD, 2_000_001_000),  # V-25
    (E, None, None, None, BATCH, 5500),  # V-25
    (B, Qos.BE, None, 7500, MID, 7500),  # V-25
    (B, Qos.LS, "foo", 9100, PROD, 9100),  # V-25
    (B, Qos.LS, None, 8500, PROD, 8500),  # V-25
    (B, None, "koord-mid", 9000, MID, 9000),  # V-68
    (E, None, None, 2_000_001_000, BATCH, 2_000_001_000),  # V-68
    (G, None, "foo", None, PROD, 9500),  # V-68
    (E, Qos.BE, None, 9100, PROD, 9100),  # V-68
    (B, Qos.SYSTEM, None, None, PROD, 9500),  # V-68
    (B, None, None, 0, PROD, 9500),
    (B, None, "koord-free", None, PriorityClass.FREE, 3500),
    (B, None, None, 3000, PriorityClass.FREE, 3000),
    (B, None, None, 5999, BATCH, 5999),
]


@pytest.mark.parametrize(("kube", "qos", "label", "priority", "want", "value"), PRIORITIES)
def test_priority(
    kube: KubeQos, qos: Qos | None, label: str | None, priority: int | None, want: PriorityClass, value: int
) -> None:
    pod = Pod("u", "ns", "p", "", kube, qos=qos, priority=priority, priority_label=label)
    assert (pod.priority_class, pod.priority_value) == (want, value)


@pytest.mark.parametrize(
    ("kube", "qos", "is_be"),
    [(E, None, True), (B, Qos.BE, True), (E, Qos.LS, True), (B, None, False), (G, Qos.LSE, False)],
)
def test_best_effort_for_suppress(kube: KubeQos, qos: Qos | None, is_be: bool) -> None:
    assert Pod("u", "ns", "p", "", kube, qos=qos).is_be is is_be
