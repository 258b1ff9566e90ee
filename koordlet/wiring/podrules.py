"""The pod rules' ways out that are no cgroup file: one applier per kind of effect."""

from __future__ import annotations

from koordlet.act.attributes import ATTRIBUTES_FILE, Attributes
from koordlet.act.core_sched import CoreCookies
from koordlet.act.journal import read_boot_id
from koordlet.act.oom_score import OomScores
from koordlet.config.flags import Flags
from koordlet.kernel.host import Host
from koordlet.model.effect import Applier


def make_appliers(flags: Flags, host: Host) -> tuple[Applier, ...]:
    """Their first round, in which nothing may be wanted, undoes what a crashed agent left behind."""
    attributes = Attributes(None if flags.observe else flags.state_dir / ATTRIBUTES_FILE, read_boot_id(host))
    return (
        OomScores(host, attributes, observe=flags.observe),
        CoreCookies(host, attributes, observe=flags.observe),
    )
