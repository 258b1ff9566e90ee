"""Suppress policy `cfsQuota`: from the target to one quota per BE root. Pure. (spec 3.4)

All totals are microseconds per 100 ms over all BE roots; None is "unlimited", which is larger than any number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from koordlet.decide import slew
from koordlet.decide.slew import Ramp
from koordlet.model.pod import Tree
from koordlet.model.units import DEFAULT_PERIOD_US, QUOTA_MIN_US, UNLIMITED
from koordlet.model.view import BeRoot

FLOOR_US: Final = 2_000
_DEAD_DIVISOR: Final = 100


def floor_us(roots: int) -> int:
    """Smallest total: the reference's 2000, and what the kernel needs for each root."""
    return max(FLOOR_US, roots * QUOTA_MIN_US)


def present_us(roots: Sequence[BeRoot], last_us: int | None) -> int | None:
    """The total in force before this decision, None while unlimited.

    What the kernel says and what we last wanted, whichever is less. A root that somebody set back to
    unlimited (systemd and the kubelet do, F-06) counts with our last value, so it is re-applied at once
    instead of climbing up again; an unreadable one too.
    """
    if last_us is None:
        now = [_per_default_period(root) for root in roots]
        return None if None in now else sum(us for us in now if us is not None)
    own = split(last_us, roots)
    total = 0
    for root, value in zip(roots, own, strict=True):
        kernel = _per_default_period(root)
        total += value if kernel is None or root.quota_us == in_period(value, root) else kernel
    return last_us if total >= sum(own) else total


def step(
    target_mcpu: int, old_us: int | None, capacity_mcpu: int, roots: int, ramp: Ramp, may_grow: bool, now_s: float
) -> tuple[int, str, Ramp]:
    """The next total, the name of the rule that set it, and the next ramp."""
    node_us = -(-capacity_mcpu // 1000) * DEFAULT_PERIOD_US
    least = floor_us(roots)
    want = max(target_mcpu * DEFAULT_PERIOD_US // 1000, least)
    limits = slew.Limits(
        step=node_us // slew.GROWTH_DIVISOR,
        band=node_us // slew.BAND_DIVISOR,
        dead=0 if want == least else node_us // _DEAD_DIVISOR,
    )
    total, rule, ramp = slew.toward(want, old_us, limits, ramp, may_grow, now_s)
    return max(total, least), rule, ramp


def split(total_us: int, roots: Sequence[BeRoot]) -> list[int]:
    """The total by batch-cpu request, equally without requests, never below the kernel's minimum each.

    A root that requests nothing beside others that do counts as the smallest of these: 1 % of a CPU would
    be no share.
    """
    least = min((root.request_mcpu for root in roots if root.request_mcpu > 0), default=1)
    weights = [root.request_mcpu if root.request_mcpu > 0 else least for root in roots]
    everything = sum(weights)
    shares = [max(total_us * weight // everything, QUOTA_MIN_US) for weight in weights]
    excess = sum(shares) - total_us
    while excess > 0 and max(shares) > QUOTA_MIN_US:
        largest = max(range(len(roots)), key=lambda at: (shares[at], roots[at].path))
        cut = min(excess, shares[largest] - QUOTA_MIN_US)
        shares[largest] -= cut
        excess -= cut
    return shares


def own_quotas(roots: Sequence[BeRoot], known: Mapping[str, int]) -> Mapping[str, int]:
    """Quotas that groups below the roots had of their own: seen now, or before we changed them.

    Once we lifted one the kernel shows ours, so what was seen first is kept while the group is there. Returns `known`
    itself when nothing changed.
    """
    if not known and not any(root.child_quotas for root in roots):
        return known
    there = {path for root in roots for level in root.levels[1:] for path in level}
    seen = {path: us for root in roots for path, us in root.child_quotas if path not in known}
    if not seen and known.keys() <= there:
        return known
    return {path: us for path, us in {**known, **seen}.items() if path in there}


def below(root: BeRoot, root_us: int, own: Mapping[str, int]) -> list[tuple[str, int]]:
    """(path, quota) for the groups below a root whose own quota the kernel would hold against the cap.

    compat: in a kubelet's tree they are lifted, as the reference does while this policy is on. In our own trees a
    quota is somebody's limit: it is lowered to the root's, which is what it is worth there anyway.
    """
    if root.tree is Tree.KUBELET:
        return [(path, UNLIMITED) for path in sorted(own) if path.startswith(f"{root.path}/")]
    return [(path, min(us, root_us)) for path, us in sorted(own.items()) if path.startswith(f"{root.path}/")]


def in_period(us: int, root: BeRoot) -> int:
    """A share in the root's own period, as the kernel file wants it."""
    period_us = root.period_us or DEFAULT_PERIOD_US
    return max(us * period_us // DEFAULT_PERIOD_US, QUOTA_MIN_US)


def _per_default_period(root: BeRoot) -> int | None:
    if root.quota_us is None or root.quota_us < 0:
        return None
    return root.quota_us * DEFAULT_PERIOD_US // (root.period_us or DEFAULT_PERIOD_US)
