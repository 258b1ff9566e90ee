"""One object of the API server, followed by list and watch in a thread of its own.

List, then stream changes from there with bookmarks; a stream that ends, fails or goes silent is opened again where it
ended; a version that is no longer known (410) means to list anew. The last good value stays through all of that: what
to make of its age is the consumer's matter. An object that cannot be decoded keeps the previous value and says so.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec
import structlog

from koordlet.kube.backoff import Backoff
from koordlet.kube.client import Api, Stream
from koordlet.kube.errors import ApiError

log = structlog.get_logger(__name__)

STREAM_S: Final = 300
"""How long the server is asked to keep a stream open; some lets it live shorter."""
SILENCE_S: Final = 90.0
"""Servers send a bookmark each minute; without any the stream is opened anew."""

T = TypeVar("T")


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Head(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _List(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    object: msgspec.Raw
    type: str = ""


class _Failure(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


_LIST: Final = msgspec.json.Decoder(_List)
_EVENT: Final = msgspec.json.Decoder(_Event)
_HEAD: Final = msgspec.json.Decoder(_Head)


class Informer(Generic[T]):
    """The object `name` of a collection (`path`), decoded to `type`.

    value: None when there is no such object. synced: it was looked for with success at least once, so None means
    absent. revision: grows with each change of value. at_s: monotonic time of the last word from the server. error:
    what is wrong now, "" when nothing; failures counts. All may be read from any thread.
    changed: called after each change, on the informer's thread; must not block.
    keep: file for the last value, so that a start while the server is away goes on with it.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        name: str,
        type: type[T],
        *,
        changed: Callable[[], None] = lambda: None,
        keep: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self.name = path, name
        self.value: T | None = None
        self.synced = False
        self.revision = 0
        self.at_s: float | None = None
        self.error = ""
        self.failures = 0
        self._api, self._decoder = api, msgspec.json.Decoder(type)
        self._changed, self._keep, self._clock = changed, keep, clock
        self._backoff = Backoff()
        self._stopped = threading.Event()
        self._first = threading.Event()
        self._stream: Stream | None = None
        self._version = ""
        self._odd = ""  # what is wrong with the object, while the line is fine
        self._thread = threading.Thread(target=self._run, name=f"watch {path.rpartition('/')[2]}", daemon=True)

    def start(self) -> Informer[T]:
        self._remember()
        self._thread.start()
        return self

    def wait(self, timeout_s: float) -> bool:
        """Until the first answer or refusal; True when synced."""
        self._first.wait(timeout_s)
        return self.synced

    def stop(self) -> None:
        self._stopped.set()
        stream = self._stream
        if stream is not None:
            stream.shutdown()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                if not self._version:
                    self._list()
                    self._backoff.reset()
                    self._first.set()
                self._watch()
            except ApiError as error:
                if error.gone:
                    self._version = ""
                    log.info("watch.expired", path=self.path)
                    if self.error == "":  # the first time in a row: nothing is wrong with listing at once
                        self.error = str(error)
                        continue
                self._fault(error)
            except Exception as error:  # a dead thread would be an object that never changes again
                log.exception("watch.failed", path=self.path)
                self._version = ""
                self._fault(ApiError(0, "Internal", repr(error)))

    def _fault(self, error: ApiError) -> None:
        if self._stopped.is_set():
            return
        text = f"{self.path}: {error}"
        if text != self.error:
            log.warning("watch.failing", path=self.path, error=str(error))
        self.error = text
        self.failures += 1
        self._first.set()
        self._stopped.wait(max(self._backoff.next_s(), error.retry_after_s or 0.0))

    def _selector(self) -> dict[str, str]:
        return {"fieldSelector": f"metadata.name={self.name}"}

    def _list(self) -> None:
        data = self._api.read(self.path, self._selector())
        try:
            found = _LIST.decode(data)
            wanted = [item for item in found.items or [] if _HEAD.decode(item).metadata.name == self.name]
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ApiError(200, "Malformed", f"no list: {error}") from error
        self._heard()
        if wanted:
            self._take(wanted[0])
        else:
            self._set(None)
        self.synced, self._version = True, found.metadata.resource_version

    def _watch(self) -> None:
        params = self._selector() | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(STREAM_S),
        }
        with self._api.watch(self.path, params, SILENCE_S) as stream:
            self._stream = stream
            self._heard()
            try:
                if self._stopped.is_set():  # asked to stop while it was opened
                    return
                for line in stream.lines():
                    if line.strip():
                        self._event(line)
            except ApiError as error:
                if error.status != 0:
                    raise
                # A stream that breaks is everyday: open it again where it ended. A server that is away shows then.
            finally:
                self._stream = None

    def _event(self, line: bytes) -> None:
        try:
            event = _EVENT.decode(line)
            if event.type == "ERROR":
                told = msgspec.json.decode(event.object, type=_Failure)
                raise ApiError(told.code, told.reason, told.message)
            meta = _HEAD.decode(event.object).metadata
        except (msgspec.MsgspecError, RecursionError) as error:
            self._version = ""
            raise ApiError(200, "Malformed", f"no watch event: {error}") from error
        if meta.resource_version:
            self._version = meta.resource_version
        self._backoff.reset()
        self._heard()
        if meta.name == self.name:  # else a bookmark, or a server that ignores the selector
            if event.type == "DELETED":
                self._set(None)
            elif event.type in ("ADDED", "MODIFIED"):
                self._take(event.object)

    def _take(self, raw: msgspec.Raw) -> None:
        try:
            value = self._decoder.decode(raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._odd = self.error = f"{self.path}/{self.name}: not understood, the previous one stays: {error}"
            log.warning("watch.malformed", path=self.path, name=self.name, error=str(error))
            self.failures += 1
            return
        self._set(value)

    def _set(self, value: T | None) -> None:
        self._odd = self.error = ""
        if value != self.value or not self.synced:
            self.value = value
            self.revision += 1
            self._changed()
            self._write_down()

    def _remember(self) -> None:
        """What was known when we last ran; not synced by that."""
        try:
            if self._keep is not None:
                self.value = self._decoder.decode(self._keep.read_bytes())
                self.revision += 1
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("watch.not_remembered", path=str(self._keep), error=str(error))

    def _write_down(self) -> None:
        if self._keep is None:
            return
        try:
            if self.value is None:
                self._keep.unlink(missing_ok=True)
                return
            part = self._keep.with_suffix(".part")
            part.write_bytes(msgspec.json.encode(self.value))
            part.chmod(0o600)
            os.replace(part, self._keep)
        except OSError as error:  # a full disk must not stop us from following
            log.warning("watch.not_kept", path=str(self._keep), error=error.strerror)

    def _heard(self) -> None:
        self.at_s = self._clock()
        if self.error and self.error != self._odd:
            log.info("watch.recovered", path=self.path)
        self.error = self._odd
