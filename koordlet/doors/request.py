"""One HTTP request on one connection: read the head within limits, ask the page, send the answer, hang up."""

from __future__ import annotations

import io
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import structlog

from koordlet.doors.guard import OPEN_PATHS

log = structlog.get_logger(__name__)

Reply = tuple[int, str, bytes] | tuple[int, str, bytes, Mapping[str, str]]
"""(status, content type, body), and more headers where a page has some."""

HEAD_MAX_BYTES: Final = 8192
HEAD_LIMIT_S: Final = 5.0
REPLY_LIMIT_S: Final = 5.0
MAX_FIELDS: Final = 16
_DRAIN_MAX_BYTES: Final = 1 << 18
_DRAIN_LIMIT_S: Final = 0.2
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="koordlet"'}


class RequestHandler(BaseHTTPRequestHandler):
    """The standard library parses; it is given the complete head, so no stranger can make it wait."""

    server_version = "koordlet"
    sys_version = ""
    protocol_version = "HTTP/1.0"  # one request per connection
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = "text/plain; charset=utf-8"
    server: Any

    def setup(self) -> None:
        super().setup()
        head = _read_head(self.connection)
        self.server.heard(self.connection)
        self.connection.settimeout(REPLY_LIMIT_S)  # sendall takes it for the whole reply
        self.rfile.close()
        self._head = head
        self.rfile = io.BufferedReader(io.BytesIO(head))

    def handle(self) -> None:
        self.requestline, self.request_version, self.command = "", "HTTP/1.0", ""
        if len(self._head) > HEAD_MAX_BYTES:
            self.send_error(431, "Request head is larger than 8 KiB")
        elif _complete(self._head):
            self.handle_one_request()
        elif self._head:
            self.send_error(408, "Request head is incomplete")

    def finish(self) -> None:
        super().finish()
        _drain(self.connection)

    def do_GET(self) -> None:
        self._ask(self.server.pages)

    def do_POST(self) -> None:
        """Without a body: what is asked stands in the query. Only the unix door has something to be asked for."""
        if self.path.partition("?")[0] in self.server.actions:
            self._ask(self.server.actions)
        else:
            self._refuse_method()

    def _ask(self, pages: Mapping[str, Callable[[Mapping[str, str], str], Reply]]) -> None:
        try:
            url = urlsplit(self.path)
            query = dict(parse_qsl(url.query, keep_blank_values=True, max_num_fields=MAX_FIELDS))
        except ValueError:
            self.send_error(400, "Malformed URL")
            return
        token = self.server.token
        given = self.headers.get("Authorization", "")
        if token is not None and url.path not in OPEN_PATHS and not token.admits(given):
            self._answer((401, "text/plain; charset=utf-8", b"401 a bearer token is needed\n", _CHALLENGE))
            return
        page = pages.get(url.path)
        if page is None:
            paths = " ".join(sorted(pages))
            self._answer((404, "text/plain; charset=utf-8", f"404 no such page; there are: {paths}\n".encode()))
            return
        try:
            reply: Reply = page(query, self.headers.get("Accept", ""))
        except Exception:  # a page's fault must not end the connection without an answer
            log.exception("door.page_failed", path=url.path)
            reply = (500, "text/plain; charset=utf-8", b"500 this page failed; the agent's log has the reason\n")
        self._answer(reply)

    def _refuse_method(self) -> None:
        self.send_response(405)
        self.send_header("Allow", "GET")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refuse_method  # noqa: N815

    def _answer(self, reply: Reply) -> None:
        status, content_type, body, *more = reply
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, text in (more[0] if more else {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("door.request", door=self.server.label, line=(format % args)[:200])

    def address_string(self) -> str:
        return str(self.client_address)


def refuse(connection: socket.socket) -> None:
    """Say "busy" without waiting for anything."""
    connection.setblocking(False)
    with suppress(OSError):
        connection.send(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 5\r\n\r\nbusy\n")


def _read_head(connection: socket.socket) -> bytes:
    """Bytes up to the blank line, or what came until the limit of time, or one read more than HEAD_MAX_BYTES."""
    head = b""
    until_s = time.monotonic() + HEAD_LIMIT_S
    while len(head) <= HEAD_MAX_BYTES and not _complete(head):
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            break
        connection.settimeout(left_s)
        try:
            more = connection.recv(4096)
        except OSError:
            break
        if not more:
            break
        head += more
    return head


def _complete(head: bytes) -> bool:
    return b"\r\n\r\n" in head or b"\n\n" in head


def _drain(connection: socket.socket) -> None:
    """Take what the stranger still sends: closing with unread bytes resets the connection and loses the reply."""
    with suppress(OSError, ValueError):
        if isinstance(connection, ssl.SSLSocket):
            connection.settimeout(_DRAIN_LIMIT_S)
            connection.unwrap()  # says that the end is the end
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        until_s = time.monotonic() + _DRAIN_LIMIT_S
        taken = 0
        while taken < _DRAIN_MAX_BYTES and (left_s := until_s - time.monotonic()) > 0:
            connection.settimeout(left_s)
            more = connection.recv(65536)
            if not more:
                break
            taken += len(more)
