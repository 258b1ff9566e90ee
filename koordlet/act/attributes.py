"""What processes said before us, durable before the first change: the journal's sister for what is no cgroup file.

A small JSON file, written anew and renamed into place whenever something is added; entries of another boot are dropped.
A process is known by its number and start time, so that a number that was given to another one is never touched.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog

from koordlet.kernel.errors import is_gone
from koordlet.kernel.host import Host

log = structlog.get_logger(__name__)

ATTRIBUTES_FILE: Final = "attributes.json"
MAX_BYTES: Final = 4 << 20


class Attributes:
    """kind -> key -> what there is to know for an undo. path None: nothing is remembered (observe)."""

    def __init__(self, path: Path | None, boot_id: str) -> None:
        self._path, self._boot_id = path, boot_id
        self._kinds: dict[str, dict[str, Any]] = _load(path, boot_id) if path is not None else {}

    def of(self, kind: str) -> dict[str, Any]:
        return dict(self._kinds.get(kind, {}))

    def add(self, kind: str, entries: dict[str, Any]) -> None:
        """Durable on return. Raises OSError, and then holds none of them."""
        before = self._kinds.get(kind, {})
        if all(before.get(key) == value for key, value in entries.items()):
            return
        self._kinds[kind] = {**before, **entries}
        try:
            self._save()
        except OSError:
            self._kinds[kind] = before
            raise

    def drop(self, kind: str, keys: set[str]) -> None:
        """Forgotten; a failure to say so on disk only means that they are looked at again."""
        before = self._kinds.get(kind, {})
        kept = {key: value for key, value in before.items() if key not in keys}
        if len(kept) != len(before):
            self._kinds[kind] = kept
            with suppress(OSError):
                self._save()

    def _save(self) -> None:
        if self._path is None:
            return
        text = json.dumps({"boot": self._boot_id, **{kind: rows for kind, rows in self._kinds.items() if rows}})
        fresh = self._path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(self._path)


def _load(path: Path, boot_id: str) -> dict[str, dict[str, Any]]:
    """A damaged file is set aside with a message and counts as none: it alone knows what processes said before us."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MAX_BYTES))
        if not isinstance(found, dict):
            raise ValueError("no object")
    except FileNotFoundError:
        return {}
    except OSError as error:
        log.warning("attributes.unreadable", path=str(path), error=error.strerror)
        return {}
    except (ValueError, RecursionError) as error:
        aside = path.with_suffix(".broken")
        log.error("attributes.broken", path=str(path), error=str(error), kept_as=str(aside))
        with suppress(OSError):
            path.replace(aside)
        return {}
    if found.pop("boot", None) != boot_id:
        return {}
    return {kind: rows for kind, rows in found.items() if isinstance(rows, dict)}


def process_key(host: Host, pid: int) -> str | None:
    """`pid/start time`, None for a process that is gone."""
    try:
        text = (host.proc_root / str(pid) / "stat").read_text("ascii", "replace")
    except OSError as error:
        if is_gone(error):
            return None
        raise
    # The name may hold blanks and parentheses; what follows the last one is numbers. Field 22 is the start time.
    fields = text.rpartition(")")[2].split()
    return f"{pid}/{fields[19]}" if len(fields) > 19 else None
