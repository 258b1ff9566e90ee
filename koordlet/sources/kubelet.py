"""The pods of a kubelet, from a file or from its read-only port; known pods are never lost to a bad answer."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from koordlet.config.reload import file_signature
from koordlet.kernel.kubepods import Kubepods
from koordlet.model.pod import PodSet
from koordlet.sources.podlist import PodList, PodListError, decode_pods

MAX_BODY_BYTES: Final = 64 << 20
MIN_GAP_S: Final = 0.2
"""Least time between two requests, however often a refresh is wanted."""
MAX_ERRORS: Final = 100

log = structlog.get_logger(__name__)


class PodsSource:
    """Pods from FILE (looked at on every poll) or an http(s) URL (asked in a thread of our own every interval_s).

    An error keeps the known pods; their age shows in `PodSet.at_s`. So does an empty answer of a kubelet that
    had pods before: a restarting kubelet gives one. A file that somebody emptied of pods is taken at its word.
    failures counts refused answers.
    """

    def __init__(self, where: str, kubepods: Kubepods, *, interval_s: float = 10.0, timeout_s: float = 3.0) -> None:
        self.where = where
        self.failures = 0
        self._kubepods = kubepods
        self._known = PodSet()
        self._error = ""
        self._pod_errors: tuple[str, ...] = ()
        self._signature: tuple[int, ...] | None = None
        is_url = where.startswith(("http://", "https://"))
        self._fetcher = _Fetcher(where, interval_s, timeout_s) if is_url else None

    def poll(self, now_s: float) -> PodSet:
        """Known pods; never blocks on the network. now_s: monotonic."""
        if self._fetcher is None:
            self._poll_file(now_s)
        else:
            self._poll_answer(self._fetcher, now_s)
        return self._known

    def use(self, kubepods: Kubepods) -> None:
        """Name cgroups by another driver or root, once it is known; takes effect with the next answer."""
        if kubepods != self._kubepods:
            self._kubepods = kubepods
            self._signature = None
            self.request_refresh()

    def request_refresh(self) -> None:
        """Ask again soon: something new was seen on the node. Without effect for a file."""
        if self._fetcher is not None:
            self._fetcher.request()

    def errors(self) -> tuple[str, ...]:
        """What is wrong now: with the answer first, then inside single pods."""
        return ((self._error,) if self._error else ()) + self._pod_errors[:MAX_ERRORS]

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.stop()

    def _poll_file(self, now_s: float) -> None:
        try:
            signature = file_signature(Path(self.where))
            if signature is None:
                raise FileNotFoundError(2, "no such file")
            if signature == self._signature:
                if not self._error:
                    self._known = dataclasses.replace(self._known, at_s=now_s)
                return
            self._signature = signature
            with open(self.where, "rb") as file:
                data = file.read(MAX_BODY_BYTES + 1)
            self._take(_decode(data, self._kubepods), now_s)
        except OSError as error:
            self._signature = None
            self._refuse(f"{self.where}: {error.strerror or error}")
        except PodListError as error:
            self._refuse(f"{self.where}: {error}")

    def _poll_answer(self, fetcher: _Fetcher, now_s: float) -> None:
        answer = fetcher.take()
        if answer is None:
            return
        if isinstance(answer, str):
            self._refuse(f"{self.where}: {answer}")
            return
        try:
            found = _decode(answer, self._kubepods)
        except PodListError as error:
            self._refuse(f"{self.where}: {error}")
            return
        if not found.pods and self._known.pods:
            self._refuse(f"{self.where}: answered without any pod; the {len(self._known.pods)} known ones are kept")
            return
        self._take(found, now_s)

    def _take(self, found: PodList, now_s: float) -> None:
        changed = found.pods != self._known.pods or self._known.at_s is None
        self._known = PodSet(
            pods=found.pods if changed else self._known.pods,
            revision=self._known.revision + changed,
            at_s=now_s,
        )
        if found.errors and found.errors != self._pod_errors:
            log.warning("pods.malformed", source=self.where, count=len(found.errors), first=found.errors[0])
        self._error, self._pod_errors = "", found.errors

    def _refuse(self, error: str) -> None:
        self.failures += 1
        if error != self._error:
            log.warning("pods.refused", source=self.where, error=error, known=len(self._known.pods))
        self._error = error


def _decode(data: bytes, kubepods: Kubepods) -> PodList:
    if len(data) > MAX_BODY_BYTES:
        raise PodListError(f"more than {MAX_BODY_BYTES} bytes")
    return decode_pods(data, kubepods)


class _Fetcher:
    """A thread that asks a URL at an interval and keeps the latest answer: the body, or what went wrong."""

    def __init__(self, url: str, interval_s: float, timeout_s: float) -> None:
        self._get = _getter(url, timeout_s)
        self._interval_s = interval_s
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._answer: bytes | str | None = None
        self._thread: threading.Thread | None = None

    def take(self) -> bytes | str | None:
        """The answer since the last take, None without a new one. Starts the thread when first called."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kubelet-pods", daemon=True)
            self._thread.start()
        with self._lock:
            answer, self._answer = self._answer, None
        return answer

    def request(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            answer = self._get()
            with self._lock:
                self._answer = answer
            if not self._stopped.wait(MIN_GAP_S):
                self._wake.wait(max(self._interval_s - MIN_GAP_S, 0.0))


def _getter(url: str, timeout_s: float) -> Callable[[], bytes | str]:
    """A call that asks once: body, or the reason why there is none. timeout_s bounds the whole exchange."""
    import urllib3  # 3.4 MB, needed only where a URL is given

    pool = urllib3.PoolManager(num_pools=1, maxsize=1, retries=False, timeout=urllib3.Timeout(total=timeout_s))

    def get() -> bytes | str:
        deadline_s = time.monotonic() + timeout_s
        response = None
        try:
            response = pool.request(
                "GET",
                url,
                preload_content=False,
                redirect=False,
                decode_content=False,
                headers={"User-Agent": "koordlet", "Accept": "application/json", "Accept-Encoding": "identity"},
            )
            if response.status != 200:
                return f"HTTP status {response.status}"
            body = bytearray()
            for chunk in response.stream(1 << 16, decode_content=False):
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    return f"more than {MAX_BODY_BYTES} bytes"
                if time.monotonic() > deadline_s:
                    return f"not complete after {timeout_s:g} s"
            return bytes(body)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            return " ".join(str(error).split())[:300] or type(error).__name__
        finally:
            if response is not None:
                response.close()  # a body read to its end has given its connection back before

    return get
