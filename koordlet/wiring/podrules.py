"""The pod rules' ways out that are no cgroup file: one applier per kind of effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from koordlet.act.attributes import ATTRIBUTES_FILE, Attributes
from koordlet.act.core_sched import CoreCookies
from koordlet.act.journal import read_boot_id
from koordlet.act.network import Network
from koordlet.act.oom_score import OomScores
from koordlet.act.terway import TerwayFiles
from koordlet.config.flags import Flags
from koordlet.decide.podrules import terway
from koordlet.kernel.host import Host
from koordlet.model.effect import Applier
from koordlet.report.metrics import Metrics


def open_attributes(flags: Flags, host: Host) -> Attributes:
    """One for all who note something there: the file is written as a whole."""
    return Attributes(None if flags.observe else flags.state_dir / ATTRIBUTES_FILE, read_boot_id(host))


def make_appliers(
    flags: Flags,
    host: Host,
    attributes: Attributes,
    replied: Callable[[str], tuple[int, int] | None],
    metrics: Metrics,
) -> tuple[Applier, ...]:
    """Their first round, in which nothing may be wanted, undoes what a crashed agent left behind. replied: see
    OomScores."""
    return (
        OomScores(host, attributes, observe=flags.observe, told=replied),
        CoreCookies(host, attributes, observe=flags.observe, count=metrics.count_cookies),
        Network(attributes, observe=flags.observe),
        TerwayFiles(
            Path("/var/lib" if flags.host_mode else "/host-var-lib") / "terway/qos",
            (terway.NODE_FILE, terway.POD_FILE),
            observe=flags.observe or "TerwayQoS" not in flags.gates.effective,
        ),
    )
