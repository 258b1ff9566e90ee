"""oom_score_adj of the processes of containers that ask for one; given back when they no longer do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from koordlet.act.attributes import Attributes, process_key
from koordlet.act.kill import members
from koordlet.kernel.errors import is_gone
from koordlet.kernel.host import Host
from koordlet.kernel.write import write_file
from koordlet.model.effect import Effect, EffectReport
from koordlet.model.podeffects import OomScore

EAGER_S: Final = 10.0
"""For so long after a change of the wishes each round looks at the processes."""
CALM_S: Final = 10.0
"""Afterwards this often: children inherit the score, only what enters from outside has another one."""


class OomScores:
    """The applier. observe: looks, but writes nothing. told: (what the runtime was asked for, what our reply made it
    set) for a container's processes, None where no reply said anything."""

    kind = OomScore.kind

    def __init__(
        self,
        host: Host,
        attributes: Attributes,
        *,
        observe: bool = False,
        writer: Callable[[Path, bytes], None] = write_file,
        told: Callable[[str], tuple[int, int] | None] = lambda target: None,
    ) -> None:
        self._told = told
        self._host, self._attributes, self._observe, self._writer = host, attributes, observe, writer
        self._effects: tuple[Effect, ...] = ()
        self._eager_until_s = self._due_s = float("-inf")
        self._report = EffectReport()
        self._first = True

    def apply(self, effects: tuple[Effect, ...], now_s: float) -> EffectReport:
        if effects != self._effects or self._first:
            self._effects, self._first = effects, False
            self._eager_until_s = now_s + EAGER_S
        elif now_s >= self._eager_until_s and now_s < self._due_s:
            return self._report
        self._due_s = now_s + CALM_S
        wanted: dict[str, tuple[int, int]] = {}
        replied: dict[str, int] = {}
        state: dict[str, str] = {}
        errors: list[str] = []
        for effect in effects:
            if isinstance(effect, OomScore):
                try:
                    pids = members(self._host, effect.target)
                except OSError as error:
                    errors.append(f"{effect.target}: {error}")
                    continue
                keys = {key: pid for pid in pids if pid and (key := process_key(self._host, pid))}
                wanted |= {key: (pid, effect.score) for key, pid in keys.items()}
                told = self._told(effect.target)
                if told is not None and told[1] == effect.score:
                    replied |= dict.fromkeys(keys, told[0])
                state[effect.target] = f"{effect.score} for {len(keys)} processes"
        done = self._set(wanted, replied, errors)
        undone = self._give_back(set(self._attributes.of(self.kind)) - wanted.keys(), errors)
        until_s = self._due_s if now_s >= self._eager_until_s else 0.0
        self._report = EffectReport(done, undone, len(errors), state, tuple(errors), until_s)
        return self._report

    def restore_all(self, now_s: float, why: str) -> None:
        self._give_back(set(self._attributes.of(self.kind)), [])
        self._effects, self._first = (), True

    def _set(self, wanted: dict[str, tuple[int, int]], replied: dict[str, int], errors: list[str]) -> int:
        """replied: what a process would have without our reply to the runtime, which set it for us."""
        known = self._attributes.of(self.kind)
        changes: dict[str, tuple[int, int]] = {}
        originals: dict[str, list[int | None]] = {}
        for key, (pid, score) in wanted.items():
            found = self._read(pid)
            if found is not None and found != score:
                changes[key] = (pid, score)
                originals[key] = [known[key][0] if key in known else found, score]
            elif found == score and key in replied and key not in known:
                originals[key] = [replied[key], score]
        if self._observe or not originals:
            return 0
        try:
            self._attributes.add(self.kind, originals)
        except OSError as error:
            errors.append(f"originals could not be made durable, nothing was written: {error}")
            return 0
        return sum(self._write(pid, score, errors) for pid, score in changes.values())

    def _give_back(self, keys: set[str], errors: list[str]) -> int:
        """Only what still is ours."""
        if self._observe:
            return 0
        known, undone, settled = self._attributes.of(self.kind), 0, set[str]()
        for key in keys:
            pid = int(key.partition("/")[0])
            original, ours = known[key]
            if process_key(self._host, pid) == key and self._read(pid) == ours and original is not None:
                if not self._write(pid, original, errors):
                    continue
                undone += 1
            settled.add(key)
        self._attributes.drop(self.kind, settled)
        return undone

    def _path(self, pid: int) -> Path:
        return self._host.proc_root / str(pid) / "oom_score_adj"

    def _read(self, pid: int) -> int | None:
        try:
            return int(self._path(pid).read_text("ascii"))
        except (OSError, ValueError):
            return None

    def _write(self, pid: int, score: int, errors: list[str]) -> bool:
        try:
            self._writer(self._path(pid), b"%d" % score)
        except OSError as error:
            if not is_gone(error):
                errors.append(f"{error.filename}: {error.strerror}")
            return is_gone(error)
        return True
