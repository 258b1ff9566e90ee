"""Network sections of an effective NodeSLO -> `Network`, every rate in bits per second (spec/hooks 4.10)."""

from __future__ import annotations

from typing import Any

from koordlet.config.schema import INT64_MAX, At
from koordlet.model.quantity import parse_units
from koordlet.model.slo import Network, NetworkClass, NetworkPolicy


def network(effective: dict[str, Any], at: At) -> Network:
    """Raises PolicyError for a rate that is negative or beyond 64 bits."""
    strategy = effective["resourceQOSStrategy"]
    text = effective["systemStrategy"]["totalNetworkBandwidth"]
    total_bps = _bps(text, at.below("systemStrategy").below("totalNetworkBandwidth"))
    here = at.below("resourceQOSStrategy")
    return Network(
        policy=NetworkPolicy(strategy["policies"]["netQOSPolicy"]),
        total_bps=total_bps,
        ls=_class(strategy["lsClass"]["networkQOS"], total_bps, here.below("lsClass").below("networkQOS")),
        be=_class(strategy["beClass"]["networkQOS"], total_bps, here.below("beClass").below("networkQOS")),
    )


def _class(block: dict[str, Any], total_bps: int, at: At) -> NetworkClass:
    if not block["enable"]:
        return NetworkClass()
    rates = {name: _rate(block[name], total_bps, at.below(name)) for name in _RATES}
    return NetworkClass(True, *rates.values())


def _rate(value: int | str, total_bps: int, at: At) -> int:
    """An integer is a percentage of the node's bandwidth, a text bits per second."""
    return _bps(value, at) if isinstance(value, str) else total_bps * value // 100


def _bps(text: str, at: At) -> int:
    value = parse_units(text)
    if not 0 <= value <= INT64_MAX:
        raise at.error(text, "bits per second, not negative")
    return value


_RATES = ("ingressRequest", "ingressLimit", "egressRequest", "egressLimit")
