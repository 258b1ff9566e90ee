"""Calls to the API server: blocking, with time-outs of their own, never on the loop's thread.

Bodies are plain JSON values, sent as they are; answers are decoded by msgspec into `type` (only the fields that it
has), or into plain values. Every failure is an ApiError. Nothing is repeated here: who asks knows what to do instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar, overload
from urllib.parse import urlencode

import msgspec

from koordlet.kube.access import Access
from koordlet.kube.errors import ApiError
from koordlet.kube.lazy import load
from koordlet.kube.limit import RateLimit

CONNECT_S: Final = 3.0
READ_S: Final = 10.0
MAX_BODY_BYTES: Final = 64 << 20
MERGE_PATCH: Final = "application/merge-patch+json"
USER_AGENT: Final = "koordlet"
DATED_S: Final = 900.0
"""For so long the clock of a server counts; a watch is begun anew more often."""

T = TypeVar("T")


class Stream:
    """An answer that does not end of itself."""

    def __init__(self, response: Any, failures: tuple[type[Exception], ...]) -> None:
        self._response, self._failures = response, failures

    def lines(self) -> Iterator[bytes]:
        """One JSON text each. Raises ApiError when the line fails, a line is endless, or nothing comes for too long."""
        rest = b""
        with _told_as_api_errors(self._failures):
            for chunk in self._response.stream(1 << 16):
                *whole, rest = (rest + chunk).split(b"\n")
                yield from whole
                if len(rest) > MAX_BODY_BYTES:
                    raise ApiError(0, "Malformed", f"a line of more than {MAX_BODY_BYTES} bytes")

    def shutdown(self) -> None:
        """End it, from any thread."""
        with suppress(ValueError, OSError, AttributeError):
            self._response.shutdown()


class Api:
    """One server, as one user. Methods may be called from any thread, and block it.

    limit: what all calls together keep to. sleep: how to wait for one's turn. observed: told (verb, path, status,
    seconds) of each call that is no watch.
    """

    def __init__(
        self,
        access: Access,
        *,
        connect_s: float = CONNECT_S,
        read_s: float = READ_S,
        limit: RateLimit | None = None,
        sleep: Callable[[float], None] = time.sleep,
        observed: Callable[[str, str, int, float], None] = lambda verb, path, status, seconds: None,
    ) -> None:
        self.access = access
        self._connect_s, self._read_s = connect_s, read_s
        self._limit, self._sleep, self._observed = limit, sleep, observed
        self._dated: tuple[str, float] | None = None
        rest = load()
        self._failures = rest.failures
        found = rest.Configuration(
            host=access.server,
            ssl_ca_cert=access.ca_file,
            cert_file=access.cert_file,
            key_file=access.key_file,
            verify_ssl=access.verify,
            tls_server_name=access.tls_server_name,
            connection_pool_maxsize=4,
            retries=False,
        )
        if not access.verify:
            rest.hush()  # it is what was asked for; a warning per request helps nobody
        found.keep_alive = True  # or a watch through a silent middle-man is dead without anybody noticing
        self._client = rest.Client(found)

    def close(self) -> None:
        self._client.close()

    def clock_s(self) -> float | None:
        """What the server's wall clock shows now, to a second or two; None while it has not said so of late."""
        if self._dated is None or (age_s := time.monotonic() - self._dated[1]) > DATED_S:
            return None
        try:
            return parsedate_to_datetime(self._dated[0]).timestamp() + age_s
        except (ValueError, OverflowError):
            return None

    @overload
    def get(self, path: str, params: Mapping[str, str] | None = None) -> Any: ...
    @overload
    def get(self, path: str, params: Mapping[str, str] | None = None, *, type: type[T]) -> T: ...
    def get(self, path: str, params: Mapping[str, str] | None = None, *, type: Any = Any) -> Any:
        """GET. path: from the server's root on ("/api/v1/nodes/a"), escaped where needed."""
        return self._call("GET", path, params, type=type)

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        """POST to a collection or a subresource; the object made."""
        return self._call("POST", path, body=body)

    def update(self, path: str, body: Mapping[str, Any]) -> Any:
        """PUT; the object as it is then. 409 when body's resourceVersion is old."""
        return self._call("PUT", path, body=body)

    def merge_patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """PATCH by RFC 7396: objects merge, arrays and scalars replace, null removes."""
        return self._call("PATCH", path, body=body, kind=MERGE_PATCH)

    def read(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        """GET, undecoded."""
        return self._bytes("GET", path, params, None, "")[1]

    @contextmanager
    def watch(self, path: str, params: Mapping[str, str], silence_s: float) -> Iterator[Stream]:
        """GET of a stream; silence_s: without a byte for so long it ends with an ApiError."""
        with self._send("GET", path, params, None, "", silence_s) as response:
            yield Stream(response, self._failures)

    def _call(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
        type: Any = Any,
    ) -> Any:
        status, data = self._bytes(method, path, params, body, kind)
        try:
            return _decoder(type).decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ApiError(status, "Malformed", f"{method} {path}: {error}") from error

    def _bytes(
        self, method: str, path: str, params: Mapping[str, str] | None, body: Any, kind: str
    ) -> tuple[int, bytes]:
        begun_s, status = time.monotonic(), 0
        try:
            with self._send(method, path, params, body, kind, self._read_s) as response:
                status = response.status
                return status, _body(response, begun_s + self._connect_s + self._read_s, self._failures)
        except ApiError as error:
            status = error.status
            raise
        finally:
            self._observed(method.lower(), path, status, time.monotonic() - begun_s)

    @contextmanager
    def _send(
        self, method: str, path: str, params: Mapping[str, str] | None, body: Any, kind: str, read_s: float
    ) -> Iterator[Any]:
        """The open answer of a call that the server accepted. Raises ApiError."""
        if self._limit is not None and (wait_s := self._limit.take()) > 0:
            self._sleep(wait_s)
        url = f"{self.access.server}{path}{'?' + urlencode(params) if params else ''}"
        for anew in (False, True):
            headers = {"User-Agent": USER_AGENT, "Accept": "application/json", **self.access.headers(anew)}
            if body is not None:
                headers["Content-Type"] = kind
            with _told_as_api_errors(self._failures):
                timeout = (self._connect_s, read_s)
                answer = self._client.request(method, url, headers, body, _request_timeout=timeout)
                response = answer.response
            if date := response.headers.get("Date"):
                self._dated = (date, time.monotonic())
            with closing(response):  # a body that was read to its end has given its connection back before
                if response.status == 401 and not anew:
                    continue  # the token was rotated since we looked
                if response.status >= 300:
                    raise _refusal(response, self._failures)
                yield response
                return


def _body(response: Any, deadline_s: float, failures: tuple[type[Exception], ...]) -> bytes:
    """The whole answer, bounded in size and time."""
    body = bytearray()
    with _told_as_api_errors(failures):
        for chunk in response.stream(1 << 16):
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise ApiError(response.status, "Malformed", f"an answer of more than {MAX_BODY_BYTES} bytes")
            if time.monotonic() > deadline_s:
                raise ApiError(0, "Unreachable", "the answer was not complete in time")
    return bytes(body)


class _Status(msgspec.Struct):
    reason: str = ""
    message: str = ""


def _refusal(response: Any, failures: tuple[type[Exception], ...]) -> ApiError:
    """What a server says that refuses: a Status object, or some text of a middle-man."""
    try:
        text = bytes(response.read(1 << 16)).decode(errors="replace")
    except failures:
        text = ""
    try:
        status = msgspec.json.decode(text, type=_Status)
    except msgspec.MsgspecError:
        status = _Status(message=text)
    after = response.headers.get("Retry-After", "")
    return ApiError(
        response.status,
        status.reason or response.reason or "Refused",
        " ".join(status.message.split())[:500],
        float(after) if after.isascii() and after.isdigit() and len(after) < 6 else None,
    )


@contextmanager
def _told_as_api_errors(failures: tuple[type[Exception], ...]) -> Iterator[None]:
    try:
        yield
    except failures as error:
        raise ApiError(0, "Unreachable", " ".join(str(error).split())[:300] or type(error).__name__) from error


_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def _decoder(type: Any) -> msgspec.json.Decoder[Any]:
    if type not in _DECODERS:
        _DECODERS[type] = msgspec.json.Decoder(type)
    return _DECODERS[type]
