"""Field cases: one folder each below tests/cases, with the input files and `expected.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CASES = Path(__file__).resolve().parent.parent / "cases"


def case_text(case: str, name: str) -> str:
    return (CASES / case / name).read_text()


def case_json(case: str, name: str = "expected.json") -> Any:
    return json.loads(case_text(case, name))
