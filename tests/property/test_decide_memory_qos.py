"""Memory QoS for any pods and percents: legal values only, and parents hold what is protected below."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.knobtext import encode
from koordlet.model.knob import Knob
from koordlet.model.memory_qos import MemoryClass, MemoryClasses, MemoryQos
from koordlet.model.pod import Pod
from koordlet.model.qos import KubeQos, Qos
from tests.unit.decide.test_memory_qos import decide, pod

PERCENT = st.none() | st.integers(0, 100)
QOS = st.builds(
    MemoryQos,
    min_percent=PERCENT,
    low_percent=PERCENT,
    throttling_percent=PERCENT,
    wmark_ratio=PERCENT,
    wmark_scale_permill=st.none() | st.integers(1, 1000),
    wmark_min_adj=st.none() | st.integers(-25, 50),
    priority=st.none() | st.integers(0, 12),
    oom_kill_group=st.none() | st.integers(0, 1),
    pagecache_percent=PERCENT,
    pagecache_bytes=st.none() | st.integers(0, 2**63 - 1),
)
CLASS = st.builds(MemoryClass, enable=st.booleans(), qos=QOS)
KINDS = st.sampled_from([(Qos.LS, KubeQos.BURSTABLE), (Qos.LSR, KubeQos.GUARANTEED), (Qos.BE, KubeQos.BESTEFFORT)])
BYTES = st.integers(0, 1 << 42)


@st.composite
def pods(draw: st.DrawFn) -> list[Pod]:
    made = []
    for number in range(draw(st.integers(0, 6))):
        qos, kube = draw(KINDS)
        limit = draw(st.none() | BYTES)
        made.append(pod(f"p{number}", draw(BYTES), limit, qos=qos, kube=kube, containers=draw(st.integers(1, 3))))
    return made


@given(pods(), CLASS, CLASS, CLASS)
def test_values_are_legal_and_parents_hold_their_children(
    made: list[Pod], lsr: MemoryClass, ls: MemoryClass, be: MemoryClass
) -> None:
    rule = MemoryClasses(lsr=lsr, ls=ls, be=be)
    outcome = decide(*made, rule=rule)
    values = {decision.key: decision.value for decision in outcome.decisions}
    assert len(values) == len(outcome.decisions)
    for decision in outcome.decisions:
        assert isinstance(decision.value, int)
        encode(CgroupVersion.V2, decision.knob, decision.value)
    for knob in (Knob.MEMORY_MIN, Knob.MEMORY_LOW):
        for target in {t for t, k in values if k is knob}:
            children = [v for (t, k), v in values.items() if k is knob and t.rpartition("/")[0] == target]
            assert _int(values[target, knob]) >= sum(map(_int, children))


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
