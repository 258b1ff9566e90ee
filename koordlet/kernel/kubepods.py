"""Where the kubelet puts its cgroups: names of QoS classes, pods and containers, and the way back.

All paths are relative to a hierarchy's root, without leading or trailing slash. Sources: spec/collect 1.3,
the kubelet's cgroup manager (slice names) and the runtimes' own naming.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from koordlet.kernel.host import Host
from koordlet.model.qos import KubeQos


class Driver(StrEnum):
    """Who names the directories, the kubelet's `cgroupDriver`."""

    SYSTEMD = "systemd"
    CGROUPFS = "cgroupfs"


def detect_driver(host: Host, cgroup_root: str = "/") -> Driver | None:
    """The driver whose kubepods directory exists, systemd first (after a migration both names may exist).

    None: the kubelet has not created either yet; ask again later. cgroup_root: the kubelet's `cgroupRoot`.
    """
    for driver in Driver:
        if host.dir("cpu", Kubepods(driver, cgroup_root).root()).is_dir():
            return driver
    return None


@dataclass(frozen=True, slots=True)
class Kubepods:
    """One kubelet's tree. cgroup_root: its `cgroupRoot`, "/kubelet" in a kind node."""

    driver: Driver
    cgroup_root: str = "/"

    def root(self) -> str:
        """Directory of all pods: kubepods.slice, kubepods, kubelet.slice/kubelet-kubepods.slice, ..."""
        names = [*_parts(self.cgroup_root), "kubepods"]
        return _slices(names) if self.driver is Driver.SYSTEMD else "/".join(names)

    def qos_dir(self, kube_qos: KubeQos) -> str:
        """Directory of a QoS class; guaranteed pods live in the root itself."""
        root, name = self.root(), _QOS_NAME[kube_qos]
        if not name:
            return root
        return f"{root}/{self._prefix()}-{name}.slice" if self.driver is Driver.SYSTEMD else f"{root}/{name}"

    def pod_dir(self, uid: str, kube_qos: KubeQos) -> str:
        """Directory of a pod. Raises ValueError for a UID that is no file name."""
        if not _UID.fullmatch(uid):
            raise ValueError(f"pod UID {uid[:64]!r} is not letters, digits, '-' or '_'")
        parent, name = self.qos_dir(kube_qos), _QOS_NAME[kube_qos]
        if self.driver is Driver.CGROUPFS:
            return f"{parent}/pod{uid}"
        stem = f"{self._prefix()}-{name}" if name else self._prefix()
        return f"{parent}/{stem}-pod{uid.replace('-', '_')}.slice"

    def container_dir(self, pod_dir: str, container_id: str) -> str:
        """Directory of a container from its status' `containerID`, "containerd://<id>".

        Raises ValueError for an unknown scheme or a text without "://" (an empty id is a container that the
        runtime has not named yet; callers skip it).
        """
        scheme, separator, bare = container_id.partition("://")
        if not separator or scheme not in _PREFIX or not _ID.fullmatch(bare):
            raise ValueError(f"container id {container_id[:96]!r} is not <{'|'.join(_PREFIX)}>://<id>")
        if self.driver is Driver.SYSTEMD:
            return f"{pod_dir}/{_PREFIX[scheme]}{bare}.scope"
        # CRI-O keeps its prefix, without .scope, where the other runtimes use the bare id.
        return f"{pod_dir}/crio-{bare}" if scheme == "cri-o" else f"{pod_dir}/{bare}"

    def parse_pod(self, path: str) -> tuple[str, KubeQos] | None:
        """(UID, QoS) of a pod's directory, None for any other path. Underscores become the UID's dashes."""
        path = path.strip("/")
        found = (_POD_SLICE if self.driver is Driver.SYSTEMD else _POD_PLAIN).fullmatch(path.rpartition("/")[2])
        if found is None:
            return None
        uid = found["uid"].replace("_", "-") if self.driver is Driver.SYSTEMD else found["uid"]
        for kube_qos in KubeQos:
            if self.pod_dir(uid, kube_qos) == path:
                return uid, kube_qos
        return None

    def parse_container(self, basename: str) -> str | None:
        """Bare id of a container's directory, None for others (conmon's, nested cgroups)."""
        if self.driver is Driver.SYSTEMD:
            found = _SCOPE.fullmatch(basename)
            return found["id"] or found["bare"] if found else None
        bare = basename.removeprefix("crio-")
        return bare if _ID.fullmatch(bare) and not bare.startswith("conmon-") else None

    def _prefix(self) -> str:
        return "-".join(_escape(name) for name in [*_parts(self.cgroup_root), "kubepods"])


def host_app_dir(kubepods: Kubepods | None, name: str, qos: str, cgroup_path: Mapping[str, str] | None) -> str:
    """Directory of a host application of NodeSLO.spec.hostApplications (spec/api 1.2.5).

    qos: its `qos` text. cgroup_path: its `cgroupPath` ({base, parentDir, relativePath}), None when absent.
    Raises ValueError for a path that is empty or leaves its base, and for a kubepods base while the kubelet's
    tree is unknown.
    """
    if cgroup_path is None:
        parts = [_HOST_BASE.get(qos, ""), name]
    else:
        base = cgroup_path.get("base", "")
        if base in _KUBE_BASE and kubepods is None:
            raise ValueError(f"host application {name!r}: base {base} but the kubelet's cgroups are unknown")
        root = kubepods.qos_dir(_KUBE_BASE[base]) if kubepods and base in _KUBE_BASE else ""
        parts = [root, cgroup_path.get("parentDir", ""), cgroup_path.get("relativePath", "")]
    names = [part for text in parts for part in text.split("/") if part not in ("", ".")]
    if not names or ".." in names:
        raise ValueError(f"host application {name!r}: {'/'.join(parts)!r} names no cgroup below the root")
    return "/".join(names)


def _parts(cgroup_root: str) -> list[str]:
    names = [part for part in cgroup_root.split("/") if part]
    if any(part in (".", "..") for part in names):
        raise ValueError(f"kubelet cgroup root {cgroup_root!r} is not a plain path")
    return names


def _escape(name: str) -> str:
    """A dash separates levels in a slice's name, so one inside a level is written as underscore."""
    return name.replace("-", "_")


def _slices(names: list[str]) -> str:
    """systemd's nesting: [a, b] -> a.slice/a-b.slice."""
    escaped = [_escape(name) for name in names]
    return "/".join("-".join(escaped[: depth + 1]) + ".slice" for depth in range(len(escaped)))


_QOS_NAME: Final = {KubeQos.GUARANTEED: "", KubeQos.BURSTABLE: "burstable", KubeQos.BESTEFFORT: "besteffort"}
_PREFIX: Final = {"docker": "docker-", "containerd": "cri-containerd-", "cri-o": "crio-", "pouch": "pouch-"}
_HOST_BASE: Final = {
    "LSE": "host-latency-sensitive",
    "LSR": "host-latency-sensitive",
    "LS": "host-latency-sensitive",
    "BE": "host-best-effort",
}
_KUBE_BASE: Final = {
    "Kubepods": KubeQos.GUARANTEED,
    "KubepodsBurstable": KubeQos.BURSTABLE,
    "KubepodsBesteffort": KubeQos.BESTEFFORT,
}
_UID: Final = re.compile(r"[0-9A-Za-z_-]{1,128}")
_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,255}")
_POD_SLICE: Final = re.compile(r".*-pod(?P<uid>[0-9A-Za-z_]{1,128})\.slice")
_POD_PLAIN: Final = re.compile(r"pod(?P<uid>[0-9A-Za-z_-]{1,128})")
_SCOPE: Final = re.compile(
    r"(?:docker|cri-containerd|crio|pouch)-(?!conmon-)(?P<id>[0-9A-Za-z][0-9A-Za-z_.-]{0,255})\.scope"
    r"|crio-(?!conmon-)(?P<bare>[0-9A-Za-z][0-9A-Za-z_-]{0,255})"
)
