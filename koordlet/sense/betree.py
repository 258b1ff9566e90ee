"""What stands below the best-effort roots (`BeTree`) and what the roots' own knobs say now (`RootReader`).

A root is looked at every time, so a new pod is seen at once; of the pods' directories a thirtieth per second, and all
of them when who runs here has changed. A look is a stat: kernfs counts the sub-directories in the number of links, so a
directory is listed only when there are more or fewer than known, and at every second look all the same (one may have
taken another's place).
Where links do not count (btrfs) every look lists. On v1 the cpuset hierarchy is the one listed: its levels are what
the cpuset policy must order.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.knobs import knob_path
from koordlet.kernel.knobtext import parse
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob, KnobValue
from koordlet.model.pod import Tree
from koordlet.model.view import BeRoot
from koordlet.sense.kept import KeptFile

log = structlog.get_logger(__name__)

Levels = tuple[tuple[str, ...], ...]
_ROTATION: Final = 30
_LISTED_EVERY: Final = 2
_KNOBS: Final = (Knob.CPU_QUOTA, Knob.CPUSET, Knob.CPU_SHARES, Knob.CPU_IDLE)


class BeTree:
    """Existing directories of each root at depth 0, 1 and 2, sorted, as paths relative to the hierarchy's root."""

    def __init__(self, host: Host) -> None:
        self._top = os.fspath(host.dir("cpuset", ""))
        self._roots: dict[str, dict[str, tuple[str, ...]] | None] = {}
        self._levels: dict[str, Levels] = {}
        self._queue: list[tuple[str, str]] = []
        self._batch = self._rounds = 0
        self._looked_s: float | None = None
        self._hurried = False

    def levels(self, root: str) -> Levels:
        """(root,), pods, containers; empty while the root does not exist. The first question lists all of it."""
        if root not in self._roots:
            self._roots[root] = None
            self._list_root(root)
        if root not in self._levels:
            pods = self._roots[root]
            self._levels[root] = () if pods is None else _levels(root, pods)
        return self._levels[root]

    def refresh(self, now_s: float) -> None:
        """Looks at every root, and at a thirtieth of the directories below them for each second since the last time."""
        since_s = 1.0 if self._looked_s is None else min(now_s - self._looked_s, float(_ROTATION))
        self._looked_s = now_s
        for root, pods in self._roots.items():
            if pods is None or not self._as_many(root, len(pods)):
                self._list_root(root)
        if not self._queue:
            self._queue = [(root, path) for root, pods in self._roots.items() for path in pods or ()]
            self._batch = len(self._queue) if self._hurried else -(-len(self._queue) // _ROTATION)
            self._rounds += not self._hurried
            self._hurried = False
        for _ in range(min(self._batch * max(1, round(since_s)), len(self._queue))):
            self._look_at_pod(*self._queue.pop())

    def hurry(self) -> None:
        """Look at all of them in the next refresh."""
        self._queue.clear()
        self._hurried = True

    def invalidate(self) -> None:
        """Forgets everything: the next question lists anew."""
        self._levels.clear()
        self._queue.clear()
        self._roots.clear()

    def keep(self, roots: tuple[str, ...]) -> None:
        """Forgets roots other than these."""
        for root in self._roots.keys() - set(roots):
            del self._roots[root]
            self._levels.pop(root, None)

    def _list_root(self, root: str) -> None:
        before, found = self._roots[root], self._list(root)
        if found == (None if before is None else tuple(before)):
            return
        known = before or {}
        after = {path: known[path] if path in known else self._list(path) or () for path in found or ()}
        self._roots[root] = None if found is None else after
        self._levels.pop(root, None)

    def _look_at_pod(self, root: str, path: str) -> None:
        pods = self._roots.get(root)
        if pods is None or path not in pods:
            return
        if self._rounds % _LISTED_EVERY and self._as_many(path, len(pods[path])):
            return
        found = self._list(path)
        if found is None:  # as many pods as before, but not the same
            self._list_root(root)
        elif found != pods[path]:
            pods[path] = found
            self._levels.pop(root, None)

    def _as_many(self, path: str, known: int) -> bool:
        try:
            return os.stat(f"{self._top}/{path}").st_nlink == known + 2
        except OSError:
            return False

    def _list(self, path: str) -> tuple[str, ...] | None:
        """Sorted sub-directories; None when the directory is gone or unreadable."""
        try:
            with os.scandir(f"{self._top}/{path}") as entries:
                return tuple(sorted(f"{path}/{e.name}" for e in entries if e.is_dir(follow_symlinks=False)))
        except OSError:
            return None


def _levels(root: str, pods: dict[str, tuple[str, ...]]) -> Levels:
    return ((root,), tuple(pods), tuple(path for containers in pods.values() for path in containers))


class RootReader:
    """Reads the handful of files of each root on kept descriptors."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._files: dict[str, dict[Knob | None, KeptFile]] = {}
        self._parsed: dict[Path, tuple[str, KnobValue | None]] = {}
        self._last: dict[str, tuple[tuple[object, ...], BeRoot]] = {}

    def read(
        self,
        path: str,
        tree: Tree,
        levels: Levels = (),
        request_mcpu: int = 0,
        child_quotas: tuple[tuple[str, int], ...] = (),
    ) -> BeRoot:
        """What the kernel says now; a value is None where its file is absent or makes no sense (logged).

        The same object while nothing changed.
        """
        files = self._kept(path)
        contents = [file.read() for file in files.values()]
        said = (contents, tree, levels, request_mcpu, child_quotas)
        last = self._last.get(path)
        if last is None or last[0] != said:
            texts = [None if content is None else content.decode("ascii", "replace").strip() for content in contents]
            root = self._made(path, tree, dict(zip(files, texts, strict=True)))
            root = replace(root, levels=levels, request_mcpu=request_mcpu, child_quotas=child_quotas)
            last = self._last[path] = (said, root)
        return last[1]

    def files(self, path: str) -> tuple[Path, ...]:
        """That `read` looks at."""
        return tuple(file.path for file in self._kept(path).values())

    def keep(self, roots: tuple[str, ...]) -> None:
        """Closes the descriptors of other roots."""
        for path in self._files.keys() - set(roots):
            self._last.pop(path, None)
            for file in self._files.pop(path).values():
                file.close()
                self._parsed.pop(file.path, None)

    def close(self) -> None:
        self.keep(())

    def _kept(self, path: str) -> dict[Knob | None, KeptFile]:
        files = self._files.get(path)
        if files is None:
            files = self._files[path] = self._open(path)
        return files

    def _open(self, path: str) -> dict[Knob | None, KeptFile]:
        """By knob; None stands for v1's period file (v2 has the period in cpu.max)."""
        files: dict[Knob | None, KeptFile] = {}
        for knob in _KNOBS:
            file = knob_path(self._host, path, knob, effective=True)
            if file is not None:
                files[knob] = KeptFile(file)
        if self._host.version is CgroupVersion.V1:
            files[None] = KeptFile(self._host.dir("cpu", path) / "cpu.cfs_period_us")
        return files

    def _made(self, path: str, tree: Tree, texts: dict[Knob | None, str | None]) -> BeRoot:
        files = self._files[path]
        values = {knob: self._parse(files[knob], knob, texts.get(knob)) for knob in _KNOBS if knob in files}
        quota, shares, idle = (values.get(knob) for knob in (Knob.CPU_QUOTA, Knob.CPU_SHARES, Knob.CPU_IDLE))
        cpuset = values.get(Knob.CPUSET)
        return BeRoot(
            path=path,
            tree=tree,
            quota_us=quota if isinstance(quota, int) else None,
            period_us=self._period_us(texts),
            cpuset=cpuset if isinstance(cpuset, CpuSet) else None,
            shares=shares if isinstance(shares, int) else None,
            idle=idle if isinstance(idle, int) else None,
        )

    def _parse(self, file: KeptFile, knob: Knob, text: str | None) -> KnobValue | None:
        """Value of the text; kept, so that a senseless one is said once and not whenever another file changes."""
        if text is None:
            return None
        known = self._parsed.get(file.path)
        if known is None or known[0] != text:
            known = self._parsed[file.path] = (text, self._parse_anew(file, knob, text))
        return known[1]

    def _parse_anew(self, file: KeptFile, knob: Knob, text: str) -> KnobValue | None:
        try:
            return parse(self._host.version, knob, text)
        except KernelFileError as error:
            log.warning("be_root.unreadable", error=str(error.at(file.path)))
            return None

    def _period_us(self, texts: dict[Knob | None, str | None]) -> int | None:
        text = texts.get(None) if self._host.version is CgroupVersion.V1 else texts.get(Knob.CPU_QUOTA)
        last = text.split()[-1:] if text else []
        return int(last[0]) if last and last[0].isdecimal() else None
