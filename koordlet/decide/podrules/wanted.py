"""`Wanted`: what the rules want for one pod or container, before it becomes a reply or decisions."""

from __future__ import annotations

from dataclasses import dataclass, field

from koordlet.model.cpuset import CpuSet
from koordlet.model.effect import Effect
from koordlet.model.knob import Knob, KnobValue
from koordlet.model.podevent import Device
from koordlet.model.why import Stage

Mount = tuple[str, str, tuple[str, ...]]


@dataclass(slots=True)
class Wanted:
    """None is "no opinion". cpuset: an empty set asks the runtime to let go of a pinning, and is never written.

    rule: name of the rule at work, noted with each value.
    """

    rule: str = ""
    shares: int | None = None
    quota_us: int | None = None
    cpuset: CpuSet | None = None
    memory_limit_bytes: int | None = None
    oom_score_adj: int | None = None
    bvt: int | None = None
    idle: int | None = None
    resctrl_group: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)
    mounts: list[Mount] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    why: list[Stage] = field(default_factory=list)

    def note(self, text: str | float) -> None:
        self.why.append((self.rule, text))

    def knobs(self) -> tuple[tuple[Knob, KnobValue], ...]:
        """What goes into cgroup files."""
        values: tuple[tuple[Knob, KnobValue | None], ...] = (
            (Knob.CPU_IDLE, self.idle),
            (Knob.CPU_SHARES, self.shares),
            (Knob.CPU_QUOTA, self.quota_us),
            (Knob.CPUSET, self.cpuset or None),
            (Knob.MEMORY_LIMIT, self.memory_limit_bytes),
            (Knob.CPU_BVT, self.bvt),
        )
        return tuple((knob, value) for knob, value in values if value is not None)
