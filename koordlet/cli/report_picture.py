"""Draws the interference matrix with pillow: a row per online workload, a column per best-effort one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from PIL import Image, ImageDraw

CELL: Final = (120, 34)
LEFT: Final = 230
TOP: Final = 60
MARGIN: Final = 12
MOST: Final = 40
"""Rows and columns that are drawn; the text and the files have all."""
GREY, DARK, WHITE = (225, 225, 225), (30, 30, 30), (255, 255, 255)


def draw(answer: dict[str, Any], path: Path) -> None:
    """Raises OSError, and ValueError for an unknown kind of file."""
    pairs = {(row["online"], row["batch"]): row for row in answer["pairs"]}
    online = list(dict.fromkeys(row["online"] for row in answer["pairs"]))[:MOST]
    batch = sorted({row["batch"] for row in answer["pairs"]})[:MOST]
    width = LEFT + CELL[0] * max(1, len(batch)) + MARGIN
    height = TOP + CELL[1] * max(1, len(online)) + 2 * MARGIN
    image = Image.new("RGB", (width, height), WHITE)
    pen = ImageDraw.Draw(image)
    pen.text((MARGIN, MARGIN), f"interference on {answer['node']}: change of the online signal", fill=DARK)
    for x, name in enumerate(batch):
        pen.text((LEFT + x * CELL[0] + 4, TOP - 18), _short(name, 18), fill=DARK)
    for y, name in enumerate(online):
        pen.text((MARGIN, TOP + y * CELL[1] + 10), _short(name, 34), fill=DARK)
        for x, other in enumerate(batch):
            row = pairs.get((name, other))
            left, top = LEFT + x * CELL[0], TOP + y * CELL[1]
            pen.rectangle((left, top, left + CELL[0] - 3, top + CELL[1] - 3), fill=_colour(row))
            pen.text((left + 6, top + 10), _label(row), fill=DARK)
    image.save(path)


def _colour(row: dict[str, Any] | None) -> tuple[int, int, int]:
    if row is None or row["verdict"] == "unknown":
        return GREY
    heat = min(1.0, max(0.0, row["change"] or 0.0, row["correlation"]))
    return (255, round(245 - 150 * heat), round(235 - 190 * heat)) if row["verdict"] == "suspected" else (205, 235, 205)


def _label(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    change = "?" if row["change"] is None else f"{row['change']:+.0%}"
    return f"{change}  r={row['correlation']:+.2f}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 2] + ".."
