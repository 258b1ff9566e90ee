"""Notices pods and containers by their cgroups, so that the kubelet is asked at once and not at the next interval.

One thread waits on inotify for the directories of the QoS classes and of each pod. Where that is not to be had (no
inotify left) the interval remains, and `error` says so.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from koordlet.kernel.dirwatch import DirWatch
from koordlet.kernel.host import Host
from koordlet.kernel.kubepods import Kubepods
from koordlet.model.qos import KubeQos

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 5.0
"""A class's directory may be made late, or anew."""


class PodWake:
    """wake: called on this thread whenever something came or went; must not block."""

    def __init__(self, host: Host, kubepods: Kubepods, wake: Callable[[], None]) -> None:
        self.error = ""
        self._kubepods, self._wake = kubepods, wake
        self._top = host.dir("cpu", "")
        self._classes = [host.dir("cpu", kubepods.qos_dir(kube_qos)) for kube_qos in KubeQos]
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="pod-cgroups", daemon=True)

    def start(self) -> PodWake:
        self._thread.start()
        return self

    def stop(self) -> None:
        os.close(self._stop_write)
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        try:
            watch = DirWatch()
        except OSError as error:
            self._lame(f"inotify: {error.strerror}; new pods are noticed at the next interval only")
            os.close(self._stop_read)
            return
        try:
            self._follow(watch)
        finally:
            watch.close()
            os.close(self._stop_read)

    def _follow(self, watch: DirWatch) -> None:
        self._cover(watch, whole=True)
        self._wake()  # for what came before we watched
        poller = select.poll()
        poller.register(watch.fileno(), select.POLLIN)
        poller.register(self._stop_read, select.POLLIN | select.POLLHUP)
        while True:
            ready = {fd for fd, _ in poller.poll(LOOK_EVERY_S * 1e3)}
            if self._stop_read in ready:
                return
            if not ready:
                if self._cover(watch, whole=False):
                    self._wake()
                continue
            changes, lost = watch.read()
            if lost or any(change.made and self._is_above_containers(change.where / change.name) for change in changes):
                self._cover(watch, whole=True)
            if changes or lost:
                self._wake()

    def _cover(self, watch: DirWatch, *, whole: bool) -> bool:
        """Watch every class, and the pods of each that was not watched before, or of all (whole); True when one of them
        is new."""
        found = False
        try:
            for above in self._classes:
                # First watch, then list: what is made in between is seen twice rather than never.
                new = watch.add(above)
                if (new or whole) and above.is_dir():
                    for pod in (above / name for name in os.listdir(above)):
                        new |= self._is_pod(pod) and watch.add(pod)
                found |= new
        except OSError as error:
            self._lame(f"inotify: {error.strerror} for {error.filename or 'a pod'}; noticed at the next interval only")
            return False
        self.error = ""
        return found

    def _is_pod(self, path: Path) -> bool:
        return self._kubepods.parse_pod(str(path.relative_to(self._top))) is not None

    def _is_above_containers(self, path: Path) -> bool:
        return path in self._classes or self._is_pod(path)

    def _lame(self, error: str) -> None:
        if error != self.error:
            log.warning("pods.not_watched", error=error)
        self.error = error
