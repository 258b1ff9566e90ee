"""The pods of a kubelet: from a file, its read-only port, or by a given way; never lost to a bad answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from koordlet.config.reload import file_signature
from koordlet.kernel.kubepods import Kubepods
from koordlet.model.pod import PodSet
from koordlet.sources.podlist import PodDecoder, PodList, PodListError
from koordlet.sources.sandboxdirs import SandboxDirs

MAX_BODY_BYTES: Final = 64 << 20
MIN_GAP_S: Final = 0.2
"""Least time between two requests, however often a refresh is wanted."""
GAP_COSTS: Final = 8.0
"""Longer than that: by so much CPU time that a storm of new pods costs no more than a tenth of a core."""
FOLLOW_S: Final = (0.3, 0.7, 1.0, 2.0)
"""When to ask again after something was seen: the kubelet learns of a container's id up to some seconds later."""
MAX_ERRORS: Final = 100

log = structlog.get_logger(__name__)


class PodsSource:
    """Pods from FILE (looked at on every poll), or asked for in a thread of our own every interval_s: of an http(s)
    URL, or by `get` (the body, or why there is none), where `where` is only a name.

    An error keeps the known pods; their age shows in `PodSet.at_s`. So does an empty answer of a kubelet that
    had pods before: a restarting kubelet gives one. It is believed once none of their cgroups is there any more
    (`there`: whether a relative path is). A file that somebody emptied of pods is taken at its word.
    below: names of the directories in one, which tell the sandboxes.
    failures counts refused answers. arrived: called in the thread with each answer.
    """

    def __init__(
        self,
        where: str,
        kubepods: Kubepods,
        *,
        interval_s: float = 10.0,
        timeout_s: float = 3.0,
        get: Callable[[], bytes | str] | None = None,
        there: Callable[[str], bool] = lambda cgroup: True,
        below: Callable[[str], Iterable[str]] = lambda cgroup: (),
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        self.where = where
        self.failures = 0
        self._file = Path(where)
        self._kubepods, self._decoder = kubepods, PodDecoder(kubepods)
        self._known = PodSet()
        self._error = ""
        self._pod_errors: tuple[str, ...] = ()
        self._signature: tuple[int, ...] | None = None
        self._there, self._sandboxes = there, SandboxDirs(below)
        self._fetcher: _Fetcher | None = None
        if get is None and where.startswith(("http://", "https://")):
            get = _getter(where, timeout_s)
        if get is not None:
            ask = get
            self._fetcher = _Fetcher(lambda: self._read(ask()), interval_s, arrived)

    @property
    def asks(self) -> bool:
        """Whether somebody is asked, so that `request_refresh` has an effect."""
        return self._fetcher is not None

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
            self._kubepods, self._decoder = kubepods, PodDecoder(kubepods)
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
            signature = file_signature(self._file)
            if signature is None:
                raise FileNotFoundError(2, "no such file")
            if signature == self._signature:
                if not self._error:
                    self._known = PodSet(self._known.pods, self._known.revision, now_s)
                return
            self._signature = signature
            with open(self.where, "rb") as file:
                data = file.read(MAX_BODY_BYTES + 1)
            found = self._read(data)
            if isinstance(found, str):
                self._refuse(found)
            else:
                self._take(found, now_s)
        except OSError as error:
            self._signature = None
            self._refuse(error.strerror or str(error))

    def _poll_answer(self, fetcher: _Fetcher, now_s: float) -> None:
        found = fetcher.take()
        if isinstance(found, str):
            self._refuse(found)
        elif found is not None and not found.pods and any(self._there(pod.cgroup) for pod in self._known.pods):
            self._refuse(f"answered without any pod; the {len(self._known.pods)} known ones are kept")
        elif found is not None:
            self._take(found, now_s)

    def _read(self, answer: bytes | str) -> PodList | str:
        """The pods of an answer, or what is wrong with it. Also runs in the fetching thread."""
        if isinstance(answer, str):
            return answer
        if len(answer) > MAX_BODY_BYTES:
            return f"more than {MAX_BODY_BYTES} bytes"
        try:
            found = self._decoder.decode(answer)
        except PodListError as error:
            return str(error)
        return replace(found, pods=self._sandboxes.filled(found.pods))

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

    def _refuse(self, reason: str) -> None:
        self.failures += 1
        error = f"{self.where}: {reason}"
        if error != self._error:
            log.warning("pods.refused", source=self.where, error=error, known=len(self._known.pods))
        self._error = error


class _Fetcher:
    """A thread that asks at an interval and keeps the latest answer: the pods, or what went wrong."""

    def __init__(self, ask: Callable[[], PodList | str], interval_s: float, arrived: Callable[[], None]) -> None:
        self._ask = ask
        self._interval_s = interval_s
        self._arrived = arrived
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._answer: PodList | str | None = None
        self._thread: threading.Thread | None = None

    def take(self) -> PodList | str | None:
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
        follow: Iterator[float] = iter(())
        while not self._stopped.is_set():
            self._wake.clear()
            begun_s = time.thread_time()
            try:
                answer = self._ask()
            except Exception as error:  # a dead thread would look like an unreachable kubelet for ever
                log.exception("pods.fetch_failed")
                answer = f"internal error: {error!r}"
            with self._lock:
                self._answer = answer
            self._arrived()
            del answer
            gap_s = max(MIN_GAP_S, GAP_COSTS * (time.thread_time() - begun_s))
            if self._stopped.wait(gap_s):
                return
            if self._wake.wait(max(next(follow, self._interval_s) - gap_s, 0.0)):
                follow = iter(FOLLOW_S)


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
