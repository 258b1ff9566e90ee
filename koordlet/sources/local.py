"""Declared workloads as `Pod`s, so that every loop treats them as it treats a kubelet's (spec/ledger 6.3)."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from koordlet.config.reload import WatchedFiles
from koordlet.kernel.host import Host
from koordlet.model.pod import Container, Pod, PodSet, Tree
from koordlet.model.qos import KubeQos, Qos
from koordlet.sources.declarations import Declaration, load_declarations
from koordlet.sources.matching import Found, Resolver

log = structlog.get_logger(__name__)

_KUBE_QOS: Final = {
    Qos.LSE: KubeQos.GUARANTEED,
    Qos.LSR: KubeQos.GUARANTEED,
    Qos.LS: KubeQos.BURSTABLE,
    Qos.SYSTEM: KubeQos.BURSTABLE,
    Qos.BE: KubeQos.BESTEFFORT,
}


class LocalSource:
    """Workloads of a declarations FILE, or of the files in a DIR in name order.

    Files are followed while running; a broken one keeps what it said before. One pod per matched cgroup.
    strict: unknown keys refuse a file. failures counts refused reads. unmatched: class of undeclared work.
    """

    def __init__(self, path: Path, host: Host, *, strict: bool = False, required: bool = False) -> None:
        self.unmatched = Qos.SYSTEM
        self._files = WatchedFiles(path, partial(load_declarations, strict=strict), required=required)
        self._resolver = Resolver(host)
        self._boot_id = boot_uuid(host)
        self._declarations: tuple[Declaration, ...] = ()
        self._conflicts: tuple[str, ...] = ()
        self._warnings: tuple[str, ...] = ()
        self._found: tuple[Found, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._known = PodSet()

    def poll(self, now_s: float) -> PodSet:
        """Workloads whose cgroup exists now. now_s: monotonic."""
        reloaded = self._files.poll(now_s)
        if reloaded:
            self._take_files()
        elif not self._declarations and not self._found and self._known.at_s is not None:
            self._known = PodSet((), self._known.revision, now_s)  # nothing declared: nothing to look for
            return self._known
        resolution = self._resolver.resolve(self._declarations, now_s)
        if resolution.notes != self._notes:
            self._notes = resolution.notes
            for note in self._notes:
                log.warning("workloads.note", note=note)
        if reloaded or resolution.found != self._found or self._known.at_s is None:
            self._found = resolution.found
            self._known = PodSet(self._pods(), self._known.revision + 1, now_s)
        else:
            self._known = PodSet(self._known.pods, self._known.revision, now_s)
        return self._known

    @property
    def failures(self) -> int:
        return self._files.failures

    def errors(self) -> tuple[str, ...]:
        """Files that are refused, with the reason, and declarations left out for a name that is taken."""
        return self._files.errors + self._conflicts

    def notes(self) -> tuple[str, ...]:
        """What the operator should know: ties, nested matches, unusable matches, unknown keys."""
        return self._notes + self._warnings

    def _take_files(self) -> None:
        taken: dict[str, Declaration] = {}
        conflicts: list[str] = []
        warnings: list[str] = []
        unmatched: Qos | None = None
        for path, content in self._files.values:
            warnings += content.warnings
            for item in content.items:
                if item.key in taken:
                    conflicts.append(f"{item.where}.name: {item.key} is declared by {taken[item.key].where}, left out")
                else:
                    taken[item.key] = item
            if content.unmatched and unmatched and content.unmatched is not unmatched:
                conflicts.append(
                    f"{path}: defaults.unmatched: {content.unmatched} but an earlier file says {unmatched}"
                )
            unmatched = unmatched or content.unmatched
        self._declarations = tuple(taken.values())
        self._conflicts, self._warnings = tuple(conflicts), tuple(warnings)
        self.unmatched = unmatched or Qos.SYSTEM
        self._resolver.forget()

    def _pods(self) -> tuple[Pod, ...]:
        numbers: dict[tuple[str, str, int], int] = {}
        taken: dict[str, set[int]] = {}
        keys = [(found.declaration.key, found.path, found.inode) for found in self._found]
        for key in keys:  # an instance keeps its number while others come and go
            if key in self._numbers:
                numbers[key] = self._numbers[key]
                taken.setdefault(key[0], set()).add(numbers[key])
        pods = []
        for key, found in zip(keys, self._found, strict=True):
            if key not in numbers:
                used = taken.setdefault(key[0], set())
                numbers[key] = next(number for number in range(len(used) + 1) if number not in used)
                used.add(numbers[key])
            pods.append(self._pod(found, numbers[key]))
        self._numbers = numbers
        return tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name)))

    def _pod(self, found: Found, number: int) -> Pod:
        item = found.declaration
        return Pod(
            uid=workload_uid(self._boot_id, found.path, found.inode),
            namespace=item.namespace,
            name=f"{item.name}-{number}" if item.match.many else item.name,
            cgroup=found.path,
            kube_qos=_KUBE_QOS[item.qos],
            tree=Tree.OURS,
            qos=item.qos,
            priority=item.priority,
            priority_label=item.priority_class,
            pin=item.pin,
            containers=(Container(item.name, running=True, requests=item.requests, limits=item.limits),),
        )


def workload_uid(boot_id: uuid.UUID, cgroup: str, inode: int) -> str:
    """A declared workload's uid: another boot or a directory made anew is another workload."""
    return str(uuid.uuid5(boot_id, f"{cgroup}\n{inode}"))


def uid_now(host: Host, boot_id: uuid.UUID, cgroup: str) -> str | None:
    """The uid that a declared cgroup has at this moment, None when it is gone."""
    try:
        return workload_uid(boot_id, cgroup, host.dir("cpu", cgroup).stat().st_ino)
    except OSError:
        return None


def boot_uuid(host: Host) -> uuid.UUID:
    try:
        return uuid.UUID((host.proc_root / "sys/kernel/random/boot_id").read_text("ascii", "replace").strip())
    except (OSError, ValueError):
        return uuid.NAMESPACE_URL  # a copied tree; ids are then unique per path and inode only
