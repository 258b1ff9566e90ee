"""Files for the Terway CNI: written whole and renamed into place, removed when they are not wanted any more."""

from __future__ import annotations

import math
import os
from pathlib import Path

from koordlet.model.effect import Effect, EffectReport
from koordlet.model.podeffects import TerwayFile


class TerwayFiles:
    """The applier. directory: Terway's, made when missing."""

    kind = TerwayFile.kind

    def __init__(self, directory: Path, names: tuple[str, ...], *, observe: bool = False) -> None:
        self._directory, self._names, self._observe = directory, names, observe
        self._effects: tuple[Effect, ...] | None = None
        self._report = EffectReport()

    def apply(self, effects: tuple[Effect, ...], now_s: float) -> EffectReport:
        if effects == self._effects and not self._report.failed:
            return self._report
        wanted = {effect.target: effect.content for effect in effects if isinstance(effect, TerwayFile)}
        done, undone, errors = 0, 0, []
        for name in self._names if not self._observe else ():
            try:
                if name in wanted:
                    done += self._put(name, wanted[name])
                else:
                    undone += self._remove(name)
            except OSError as error:
                errors.append(f"{self._directory / name}: {error.strerror}")
        self._effects = effects
        state = {name: f"{len(content)} characters" for name, content in wanted.items()}
        until_s = 0.0 if errors else math.inf
        self._report = EffectReport(done, undone, len(errors), state, tuple(errors), until_s)
        return self._report

    def restore_all(self, now_s: float, why: str) -> None:
        self.apply((), now_s)

    def _put(self, name: str, content: str) -> bool:
        path = self._directory / name
        if path.exists() and path.read_text("utf-8", "replace") == content:
            return False
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = self._directory / f".{name}.new"
        with fresh.open("w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
        return True

    def _remove(self, name: str) -> bool:
        try:
            (self._directory / name).unlink()
        except FileNotFoundError:
            return False
        return True
