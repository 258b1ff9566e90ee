"""Gathers samples into metric families, each family once, in the order of first use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

PREFIX: Final = "koordlet_"


class Families:
    """Families of one scrape. node: value of label `node`; while it is "", `node_*` samples are left out."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._by_name: dict[str, Metric] = {}

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._by_name.values())

    def has(self, name: str) -> bool:
        return name in self._by_name

    def gauge(self, name: str, about: str, value: float, /, **labels: str) -> None:
        self._family(name, about, "gauge").add_sample(PREFIX + name, labels, value)

    def node_gauge(self, name: str, about: str, value: float, /, **labels: str) -> None:
        if self._node:
            self.gauge(name, about, value, node=self._node, **labels)

    def counter(self, name: str, about: str, value: float, /, **labels: str) -> None:
        """name: without `_total`, which is added."""
        self._family(name, about, "counter").add_sample(f"{PREFIX}{name}_total", labels, value)

    def node_counter(self, name: str, about: str, value: float, /, **labels: str) -> None:
        if self._node:
            self.counter(name, about, value, node=self._node, **labels)

    def flat(self, key: str, value: float) -> None:
        """key: `name` or `name{label=value,...}`; a name ending in `_total` is a counter."""
        name, _, rest = key.partition("{")
        labels = dict(pair.split("=", 1) for pair in rest.rstrip("}").split(",") if "=" in pair)
        if name.endswith("_total"):
            self.counter(name.removesuffix("_total"), name.replace("_", " "), value, **labels)
        else:
            self.gauge(name, name.replace("_", " "), value, **labels)

    def _family(self, name: str, about: str, kind: str) -> Metric:
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = Metric(PREFIX + name, about, kind)
        return found
