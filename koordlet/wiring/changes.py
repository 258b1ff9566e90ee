"""Whether the loop has to ask for all of its inputs again, or only for what its workloads use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from koordlet.config.flags import Flags
from koordlet.inputs import KubepodsInput
from koordlet.kernel.host import Host
from koordlet.sense.changes import Changes, Places
from koordlet.sources.kubeletcpus import checkpoint_file
from koordlet.wiring.beroots import BeInput
from koordlet.wiring.runtime import RuntimeDoors
from koordlet.wiring.sources import Sources

if TYPE_CHECKING:
    from koordlet.wiring.cluster import Cluster


def make_changed(
    flags: Flags,
    host: Host,
    kubepods: KubepodsInput,
    be: BeInput,
    sources: Sources,
    doors: RuntimeDoors,
    cluster: Cluster | None,
) -> Callable[[float], bool]:
    """For `Parts.changed`. What comes over a network or a socket is compared by revision, of files the kernel tells.
    While something is missing, everything counts as changed."""
    named = (*_given(flags), checkpoint_file(host))
    files = tuple(dict.fromkeys(place.parent for path in named for place in (path, path.resolve())))
    online = host.sys_root / "devices/system/cpu/online"
    roots, places = be.places, Places(files, (), (online,))
    known: tuple[object, ...] = ()

    def where() -> Places:
        nonlocal roots, places
        if be.places is not roots:
            roots = be.places
            places = Places(files, roots.groups, (online, *roots.contents))
        return places

    changes = Changes(where)

    def changed(now_s: float) -> bool:
        nonlocal known
        cluster_said = cluster.revisions() if cluster else ()
        said = (kubepods.get, doors.hooked, sources.searched(now_s), cluster_said)
        before, known = known, said
        steady = be.complete and not sources.moves and (kubepods.get is not None or not kubepods.wanted)
        return changes.any() or doors.pods.changed or said != before or not steady

    return changed


def _given(flags: Flags) -> Iterator[Path]:
    """Files that were named on the command line."""
    if flags.pods and not flags.pods.startswith(("http://", "https://")):
        yield Path(flags.pods)
    yield from (path for path in (flags.policy, flags.node) if path is not None)
    if flags.workloads is not None:  # of a directory the files in it
        yield flags.workloads / "any" if flags.workloads.is_dir() else flags.workloads
