"""The file that remembers which declared workload holds which CPUs, so that a restart moves nobody.

One JSON object: `{"version": 1, "pins": {uid: {"cpuset", "bindPolicy", "exclusivePolicy", "numaNodeResources"}}}`, the
last three as koord-scheduler writes them. A broken file is set aside with a message and counts as empty: the workloads
are then placed anew.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import Allocation, BindPolicy, ExclusivePolicy, NumaShare

log = structlog.get_logger(__name__)

VERSION: Final = 1
MAX_BYTES: Final = 1 << 20


class _Share(msgspec.Struct, omit_defaults=True):
    node: int
    cpu_mcpu: int | None = msgspec.field(default=None, name="cpuMilli")
    memory_bytes: int | None = msgspec.field(default=None, name="memoryBytes")


class _Pin(msgspec.Struct):
    cpuset: str
    bind: BindPolicy = msgspec.field(name="bindPolicy")
    exclusive: ExclusivePolicy = msgspec.field(name="exclusivePolicy")
    shares: list[_Share] = msgspec.field(name="numaNodeResources")


class _File(msgspec.Struct):
    version: int
    pins: dict[str, _Pin]


class PinFile:
    """error: why the last save failed, "" when it did not. What could not be saved is held in memory only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error = ""

    def load(self) -> dict[str, Allocation]:
        try:
            with self.path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            log.warning("pins.unreadable", path=str(self.path), error=error.strerror)
            return {}
        try:
            if len(data) > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES} bytes")
            found = msgspec.json.decode(data, type=_File)
            if found.version != VERSION:
                raise ValueError(f"version {found.version}, {VERSION} is known")
            return {uid: _allocation(pin) for uid, pin in found.pins.items()}
        except (msgspec.MsgspecError, ValueError) as error:
            aside = self.path.with_suffix(".broken")
            log.error("pins.broken", path=str(self.path), error=str(error), kept_as=str(aside))
            with contextlib.suppress(OSError):
                self.path.replace(aside)
            return {}

    def save(self, pins: Mapping[str, Allocation]) -> bool:
        """All of them, or the file stays as it was and `error` says why."""
        content = _File(VERSION, {uid: _pin(held) for uid, held in sorted(pins.items())})
        draft = self.path.with_suffix(".new")
        try:
            with draft.open("wb") as file:
                file.write(msgspec.json.encode(content))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            self.error = f"{self.path}: {error.strerror}; pinned CPUs would move on a restart"
            return False
        self.error = ""
        return True


def _pin(held: Allocation) -> _Pin:
    shares = [_Share(share.node, share.cpu_mcpu, share.memory_bytes) for share in held.shares]
    return _Pin(str(held.cpus), held.bind, held.exclusive, shares)


def _allocation(pin: _Pin) -> Allocation:
    cpus = CpuSet.parse(pin.cpuset)
    if not cpus:
        raise ValueError("a pin without CPUs")
    shares = tuple(NumaShare(share.node, share.cpu_mcpu, share.memory_bytes) for share in pin.shares)
    return Allocation(cpus, pin.bind, pin.exclusive, shares)
