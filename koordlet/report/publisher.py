"""Writes to the API server, in one thread, so that no tick ever waits for the network.

Each `Publication` decides when it is due and writes its own object. One that fails waits longer and longer, spread at
random, and keeps none of the others up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from koordlet.kube.backoff import Backoff
from koordlet.kube.client import Api
from koordlet.kube.errors import ApiError
from koordlet.model.status import Snapshot

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 1.0
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0


class Publication(Protocol):
    """One object that is kept up to date. Called on the publisher's thread only.

    now_s: monotonic. due: cheap, asked each second. publish: blocks; ends well when the object is as it should be, also
    when there was nothing to write; raises ApiError. After an error both are asked again once its time has come.
    """

    @property
    def name(self) -> str: ...

    def due(self, snapshot: Snapshot, now_s: float) -> bool: ...
    def publish(self, api: Api, snapshot: Snapshot, now_s: float) -> None: ...


@dataclass(slots=True)
class _Entry:
    publication: Publication
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_WAIT_S, LONGEST_WAIT_S))
    not_before_s: float = float("-inf")
    error: str = ""


class Publisher:
    """Runs publications in their order. count: told (publication, "written" or the error's reason) of each attempt."""

    def __init__(
        self,
        api: Api,
        snapshot: Callable[[], Snapshot | None],
        publications: tuple[Publication, ...],
        count: Callable[[str, str], None],
    ) -> None:
        self._api, self._snapshot, self._count = api, snapshot, count
        self._entries = [_Entry(publication) for publication in publications]
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> Publisher:
        self._thread.start()
        return self

    def wake(self) -> None:
        """Look now: something changed."""
        self._wake.set()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def errors(self) -> tuple[str, ...]:
        """One line per publication that fails at present."""
        return tuple(entry.error for entry in self._entries if entry.error)

    def look(self, now_s: float) -> None:
        """One round: publish what is due. Blocks."""
        for entry in self._entries:
            snapshot = self._snapshot()
            if snapshot is None or now_s < entry.not_before_s or self._stopped:
                continue
            try:
                if not entry.publication.due(snapshot, now_s):
                    continue
                entry.publication.publish(self._api, snapshot, now_s)
            except ApiError as error:
                self._failed(entry, error, now_s)
            except Exception as error:  # one publication's fault must not end the others
                log.exception("publish.broken", publication=entry.publication.name)
                self._failed(entry, ApiError(0, "Internal", repr(error)), now_s)
            else:
                self._count(entry.publication.name, "written")
                if entry.error:
                    log.info("publish.recovered", publication=entry.publication.name)
                entry.error = ""
                entry.backoff.reset()

    def _failed(self, entry: _Entry, error: ApiError, now_s: float) -> None:
        self._count(entry.publication.name, error.reason or str(error.status))
        text = f"{entry.publication.name}: {error}"
        if text != entry.error:
            log.warning("publish.failed", publication=entry.publication.name, error=str(error))
        entry.error = text
        entry.not_before_s = now_s + max(entry.backoff.next_s(), error.retry_after_s or 0.0)

    def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            self.look(time.monotonic())
            self._wake.wait(LOOK_EVERY_S)
