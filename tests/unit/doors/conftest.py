"""Fixtures of this room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from koordlet.model.podevent import PodAnswer, PodEvent
from tests.unit.doors.line import Line
from tests.unit.doors.stand import Stand


@pytest.fixture
def line() -> Iterator[Callable[..., Line]]:
    made: list[Line] = []

    def make(rule: Callable[[PodEvent], PodAnswer] | None = None, *, shake: bool = True, **desk: Any) -> Line:
        made.append(Line(Stand(rule, **desk)))
        if shake:
            made[-1].runtime.handshake()
        return made[-1]

    yield make
    for found in made:
        found.close()
        found.stand.close()
