"""The kubelet's checkpoint of the static CPU manager, followed: which CPUs are exclusive to pods it placed itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from koordlet.config.reload import file_signature
from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import Host
from koordlet.kernel.kubelet_state import KubeletCpus, read_cpu_manager_state
from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import NOBODY, Exclusive

log = structlog.get_logger(__name__)

_FILE: Final = "cpu_manager_state"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """policy: the kubelet's word, "none" where there is no checkpoint. fault: why it could not be read, while nothing
    is known of it."""

    policy: str = "none"
    exclusive: Exclusive = NOBODY
    fault: str = ""


def checkpoint_file(host: Host) -> Path:
    return host.kubelet_root / _FILE


class KubeletCheckpoint:
    """Read again when the file or the online CPUs change; one that turns to garbage keeps what was known."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._file = checkpoint_file(host)
        self._seen: object = None
        self._known = Checkpoint(fault=f"{_FILE}: not read yet")

    def read(self, online: CpuSet) -> Checkpoint:
        """Costs one stat while nothing changes."""
        try:
            seen = (file_signature(self._file), online)
            if seen == self._seen:
                return self._known
            self._seen = seen
            state = read_cpu_manager_state(self._host, online)
        except (OSError, KernelFileError) as error:
            log.warning("cpu_manager_state.failed", error=str(error))
            if self._known.fault:
                self._known = Checkpoint(fault=str(error))
            return self._known
        self._known = Checkpoint(state.policy if state else "none", exclusive(state))
        return self._known


def exclusive(state: KubeletCpus | None) -> Exclusive:
    """What a checkpoint of the static policy gives away; of any other policy nothing."""
    if state is None or state.policy != "static":
        return NOBODY
    named = CpuSet()
    for cpus in state.pods.values():
        named |= cpus
    return Exclusive(state.pods, state.exclusive - named)
