"""What a knob's file says now, in the model's unit."""

from __future__ import annotations

from koordlet.kernel.host import Host
from koordlet.kernel.knobs import knob_path
from koordlet.kernel.knobtext import parse
from koordlet.model.knob import Knob, KnobValue


def read_knob(host: Host, target: str, knob: Knob, *, effective: bool = False) -> KnobValue | None:
    """None when the file or cgroup is not there. effective: on v2 what is in force."""
    path = knob_path(host, target, knob, effective=effective)
    return None if path is None or not path.exists() else parse(host.version, knob, path.read_text("ascii"))
