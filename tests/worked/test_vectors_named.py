"""Every worked example of the specification has a test that names it: in its id, its name, or beside its row.

A name may stand for several ("test_w30_w31"). Two documents may use the same numbers, so each has the files in which
its own are looked for.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ALL = ["worked/*.py", "unit/**/*.py", "observed/*.py"]
HOOKS = [
    "worked/test_podrules_*.py", "worked/test_hook_examples.py", "unit/doors/*.py", "unit/wire/*.py",
    "unit/sources/test_sandbox.py",
]  # fmt: skip
QOS = [
    "worked/test_suppress_worked.py", "worked/test_evict_worked.py", "worked/test_burst_worked.py",
    "worked/test_memory_qos_worked.py", "worked/test_resctrl_worked.py", "worked/test_hook_examples.py",
    "unit/act/test_order.py",
]  # fmt: skip
DOCUMENTS = {
    "api-6": (55, ALL, r'\bV-(\d+)|_v(\d+)(?=[_(])|"v(\d+)(?=[-"])'),
    "hooks-7": (50, HOOKS, r"\bW(\d+)|_w(\d+)(?=[_(])"),
    "qos-16": (65, QOS, r'row[-_](\d+)|\bW-(\d+)|_w(\d+)(?=[_(])|id=f?"(\d+)(?=[-"])|16\.7/(\d+)|_(\d+)(?=[_(])'),
}
"""How many there are, where their tests are, and how they are named there."""


def text_of(patterns: list[str]) -> str:
    files = sorted({path for pattern in patterns for path in TESTS.glob(pattern)} - {Path(__file__)})
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_example_is_named(document: str) -> None:
    count, files, names = DOCUMENTS[document]
    found = {int(number) for groups in re.findall(names, text_of(files)) for number in groups if number}
    assert [number for number in range(1, count + 1) if number not in found] == []


def test_the_whole_objects_of_the_api_are_named() -> None:
    text = text_of(ALL)
    for example in ("5_1", "5_2", "5_3", "5_4"):
        number = example.replace("_", r"\.")
        assert re.search(rf"example_{example}|spec/api [0-9., ]*{number}", text), example
