"""How numbers are said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from koordlet.cli import words


@pytest.mark.parametrize(
    ("say", "value", "text"),
    [
        (words.cores, None, "-"),
        (words.cores, 0, "0.00"),
        (words.cores, 1505, "1.50"),
        (words.size, None, "-"),
        (words.size, 0, "0 B"),
        (words.size, 1023, "1023 B"),
        (words.size, 1536, "1.5 KiB"),
        (words.size, 300 << 20, "300 MiB"),
        (words.size, 5 << 50, "5120 TiB"),
        (words.age, None, "never"),
        (words.age, 0.04, "0.0 s"),
        (words.age, 61, "1 min"),
        (words.age, 7200, "2 h"),
        (words.age, 400_000, "5 d"),
        (words.why, {"ls_mcpu": 400, "kept_percent": 65}, "ls 0.40 cores, kept 65 %"),
        (words.why, {"rule": "slew", "old_us": -1, "age_s": 1.5}, "rule slew, old -1 us, age 1.5 s"),
        (words.why, {"tree": "kubelet", "floor_mcpu": "none"}, "tree kubelet, floor mcpu none"),
    ],
)  # fmt: skip
def test_words(say: Callable[[object], str], value: object, text: str) -> None:
    assert say(value) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"), [(1, 3, "33 %"), (None, 3, "-"), (1, 0, "-"), (1, None, "-"), (0, 3, "0 %")]
)
def test_percent(part: float | None, whole: float | None, text: str) -> None:
    assert words.percent(part, whole) == text
