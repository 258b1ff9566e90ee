"""Paths of cgroups: relative, without outer slashes."""

from __future__ import annotations

from collections.abc import Iterator


def ancestors(path: str) -> Iterator[str]:
    """The cgroups above, from the nearest to below the root."""
    while path := path.rpartition("/")[0]:
        yield path
