"""What was changed in resctrl, durable before it happens: groups we made, groups that were there before us.

One JSON file beside the journal, replaced as a whole (written, fsynced, renamed). Records of another boot are dropped:
a restart of the machine unmounts resctrl. Groups and monitoring groups named `koordlet-...` need no record, their name
says whose they are.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

log = structlog.get_logger(__name__)

STATE_FILE: Final = "resctrl.json"


class StateError(Exception):
    """The record could not be made durable; nothing may be written for it."""


@dataclass(slots=True)
class Adopted:
    """A group of our name that was there before us: its schemata and its tasks then."""

    schemata: str = ""
    tasks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Record:
    """monitored: monitoring groups of pods were made."""

    mounted: bool = False
    monitored: bool = False
    made: list[str] = field(default_factory=list)
    adopted: dict[str, Adopted] = field(default_factory=dict)

    def changes(self) -> tuple[str, ...]:
        """What is there to undo, for people."""
        others = [("(mount)", self.mounted), ("(monitoring of pods)", self.monitored)]
        return (*self.made, *self.adopted, *(name for name, there in others if there))


class State:
    """path None: nothing is kept, for --observe and tests of single parts."""

    def __init__(self, path: Path | None, boot_id: str) -> None:
        self.path, self._boot_id = path, boot_id
        self.record = Record()
        self.damaged = ""
        if path is not None:
            self._load(path)

    def save(self) -> None:
        """Raises StateError."""
        if self.path is None:
            return
        if not self.record.changes():
            self.path.unlink(missing_ok=True)
            return
        fresh = self.path.with_name(self.path.name + ".new")
        text = json.dumps({"boot": self._boot_id, **asdict(self.record)})
        try:
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, text.encode())
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(fresh, self.path)
        except OSError as error:
            raise StateError(f"{self.path}: {error.strerror or error}") from error

    def _load(self, path: Path) -> None:
        try:
            found: Any = json.loads(path.read_text())
            if found["boot"] != self._boot_id:
                return
            self.record = Record(
                mounted=bool(found["mounted"]),
                monitored=bool(found["monitored"]),
                made=[str(name) for name in found["made"]],
                adopted={
                    str(name): Adopted(str(row["schemata"]), [int(tid) for tid in row["tasks"]])
                    for name, row in found["adopted"].items()
                },
            )
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.damaged = f"{path}: {error}"
            log.error("resctrl.state_damaged", path=str(path), error=str(error))
