"""`PressureMeter`: pressure of the node and of some groups every 10 s, for status and metrics.

The control loops do not use it: the kernel brings the averages up to date every 2 s only. What must be noticed fast is
the sentinel's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, get_args

import structlog

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import Host
from koordlet.kernel.psi import cgroup_psi_path, node_psi_path, read_psi
from koordlet.model.psi import Pressures, Psi, Resource

log = structlog.get_logger(__name__)

RESOURCES: Final[tuple[Resource, ...]] = get_args(Resource)


class PressureMeter:
    """Switches itself off, with one log line, where the node has no pressure files or they are switched off."""

    def __init__(self, host: Host, every_s: float = 10.0) -> None:
        self.supported = True
        self.latest: Pressures | None = None
        self._host = host
        self._every_s = every_s
        self._faults: set[Path] = set()

    def collect(self, now_s: float, groups: Callable[[], Iterable[str]] = tuple) -> Pressures | None:
        """New readings when they are due, else the latest; None without support.

        groups: asked for the cgroup paths to read, e.g. the LS groups or running pods, when readings are due.
        """
        if not self.supported:
            return None
        if self.latest is not None and now_s - self.latest.at_s < self._every_s:
            return self.latest
        node = self._node()
        if not node:
            self.supported = False
            self.latest = None
            log.info("psi.unsupported", directory=str(node_psi_path(self._host, "cpu").parent))
            return None
        found = {group: values for group in groups() if (values := self._group(group))}
        self.latest = Pressures(now_s, node, found)
        return self.latest

    def _node(self) -> dict[Resource, Psi]:
        return {
            resource: psi
            for resource in RESOURCES
            if (psi := self._read(node_psi_path(self._host, resource))) is not None
        }

    def _group(self, group: str) -> dict[Resource, Psi]:
        found: dict[Resource, Psi] = {}
        for resource in RESOURCES:
            path = cgroup_psi_path(self._host, group, resource)
            if path is not None and (psi := self._read(path)) is not None:
                found[resource] = psi
        return found

    def _read(self, path: Path) -> Psi | None:
        """A fault other than "not there" is said once per file."""
        try:
            return read_psi(path)
        except (OSError, KernelFileError) as error:
            if path not in self._faults:
                self._faults.add(path)
                log.warning("psi.unreadable", path=str(path), error=str(error))
            return None
