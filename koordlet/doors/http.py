"""The two HTTP doors: TCP on -addr for scrapers and probes, a unix socket for the command on this machine.

Bounded: 16 connections per door, 8 KiB of request head, 5 s for the whole head and 5 s for the whole reply, one
request per connection. Thin: a page is a function; this file only carries its answer. When all places are taken the
connection that has been silent longest gives way, so idle or slow strangers cannot lock out a probe.
"""

from __future__ import annotations

import errno
import os
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import structlog

from koordlet.doors.guard import Tls, Token
from koordlet.doors.request import Reply, RequestHandler, refuse
from koordlet.doors.unixsocket import SocketTakenError, clear_stale

log = structlog.get_logger(__name__)

Page = Callable[[Mapping[str, str], str], Reply]

MAX_CONNECTIONS: Final = 16
IDLE_WAKE_S: Final = 3600.0
"""socketserver would look twice a second whether it shall end; `close` wakes it instead."""
SOCKET_MODE: Final = 0o660


class DoorError(Exception):
    """A door cannot be opened; the text names the flag to change."""


class HttpDoor:
    """Both doors.

    addr: Go's form (":9316" all addresses, "127.0.0.1:9316", "[::1]:9316"), "" for no TCP door.
    socket_path: "" for no unix door. public: path -> page on both, private: on the unix door instead of public.
    actions: what may be asked for by POST, on the unix door only.
    tls, token: guards of the TCP door; the unix door is guarded by its file mode.
    Raises DoorError from `start`; then nothing is left open.
    """

    def __init__(
        self,
        addr: str,
        socket_path: str,
        public: Mapping[str, Page],
        private: Mapping[str, Page] | None = None,
        *,
        actions: Mapping[str, Page] | None = None,
        tls: Tls | None = None,
        token: Token | None = None,
    ) -> None:
        self._tls, self._token = tls, token
        self._actions = actions or {}
        self._addr = addr
        self._socket_path = socket_path
        self._public = public
        self._private = public if private is None else private
        self._servers: list[_Server] = []

    @property
    def port(self) -> int | None:
        """The TCP port in use (of interest after ":0")."""
        for server in self._servers:
            if server.address_family != socket.AF_UNIX:
                return int(server.socket.getsockname()[1])
        return None

    def start(self) -> None:
        try:
            if self._socket_path:
                self._servers.append(_open_unix(self._socket_path, self._private, self._actions))
            if self._addr:
                server = _open_tcp(self._addr, self._public)
                server.tls, server.token = self._tls, self._token
                self._servers.append(server)
        except BaseException:
            for server in self._servers:
                server.server_close()
            self._servers.clear()
            raise
        for server in self._servers:
            name = f"door-{server.label}"
            threading.Thread(target=server.serve_forever, args=(IDLE_WAKE_S,), name=name, daemon=True).start()

    def close(self) -> None:
        """Stop answering; requests under way end with their own time limits. May be called twice."""
        for server in self._servers:
            _wake(server.socket)
            server.shutdown()
            server.server_close()
        self._servers.clear()


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """One listening socket; a daemon thread per connection, at most MAX_CONNECTIONS of them."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, family: int, address: object, pages: Mapping[str, Page], label: str) -> None:
        self.address_family = family
        self.pages = pages
        self.label = label
        self.actions: Mapping[str, Page] = {}
        self.tls: Tls | None = None
        self.token: Token | None = None
        self._inode = 0
        self._lock = threading.Lock()
        self._open: dict[socket.socket, bool] = {}  # in order of arrival; True while its request is still awaited
        super().__init__(address, RequestHandler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if self.address_family == socket.AF_UNIX:
            self.socket.bind(str(self.server_address))
            os.chmod(str(self.server_address), SOCKET_MODE)  # before listen(): nobody is let in by the umask
            self._inode = os.stat(str(self.server_address)).st_ino
        else:
            super().server_bind()

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            waiting = [connection for connection, awaited in self._open.items() if awaited]
        for connection in waiting:
            _wake(connection)
        if self.address_family == socket.AF_UNIX:
            path = str(self.server_address)
            try:
                if os.stat(path).st_ino == self._inode:  # not the socket of a successor
                    os.unlink(path)
            except FileNotFoundError:
                pass

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        if self.tls is not None:
            try:
                # The handshake is part of reading the head, in the connection's own thread and within its time.
                connection = self.tls.context().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            except ValueError as error:  # it left at once
                connection.close()
                raise OSError(errno.ECONNABORTED, str(error)) from error
        return connection, address

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        with self._lock:
            full = len(self._open) >= MAX_CONNECTIONS
            silent = next((connection for connection, awaited in self._open.items() if awaited), None) if full else None
            if silent is not None:
                del self._open[silent]
            if silent is not None or not full:
                self._open[request] = True
        if silent is not None:
            _wake(silent)
        elif full:
            refuse(request)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread to be had
            self.forget(request)
            raise

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        self.forget(request)
        super().shutdown_request(request)

    def heard(self, request: socket.socket) -> None:
        """Its request has arrived: from now on it is not sent away for another."""
        with self._lock:
            if request in self._open:
                self._open[request] = False

    def forget(self, request: socket.socket) -> None:
        with self._lock:
            self._open.pop(request, None)

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):  # the stranger left
            log.debug("door.connection_lost", door=self.label, errno=error.errno)
        else:
            log.exception("door.connection_failed", door=self.label)


def _wake(waited_on: socket.socket) -> None:
    """Ends another thread's wait for bytes, or for connections."""
    with suppress(OSError):
        waited_on.shutdown(socket.SHUT_RDWR)


def _open_tcp(addr: str, pages: Mapping[str, Page]) -> _Server:
    host, port = _parse_addr(addr)
    families = [socket.AF_INET6, socket.AF_INET] if host == "" else [socket.AF_INET6 if ":" in host else socket.AF_INET]
    fault: OSError | None = None
    for family in families:
        try:
            return _Server(family, (host, port), pages, f"tcp:{addr}")
        except OSError as error:
            fault = error
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # a kernel without IPv6
                break
    assert fault is not None
    raise DoorError(f"-addr={addr}: {_advice(fault, port)}") from fault


def _advice(fault: OSError, port: int) -> str:
    if fault.errno == errno.EADDRINUSE:
        return f"port {port} is used by another program; choose another, for example -addr=:{port % 65535 + 1}"
    if fault.errno == errno.EACCES:
        return f"no permission for port {port}; choose one above 1023"
    if isinstance(fault, socket.gaierror) or fault.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address; :PORT takes all of them"
    return str(fault.strerror or fault)


def _parse_addr(addr: str) -> tuple[str, int]:
    host, colon, port = addr.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not (port.isascii() and port.isdigit()) or int(port[:6]) > 65535:
        raise DoorError(f"-addr={addr}: want HOST:PORT or :PORT, with a port of 0..65535, for example :9316")
    return host, int(port)


def _open_unix(path: str, pages: Mapping[str, Page], actions: Mapping[str, Page]) -> _Server:
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
        clear_stale(path)
        server = _Server(socket.AF_UNIX, path, pages, "unix")
        server.actions = actions
        return server
    except SocketTakenError as error:
        raise DoorError(f"{error}, or choose another directory with -run-dir") from error
    except OSError as error:
        raise DoorError(f"{path}: {error.strerror or error}; choose another directory with -run-dir") from error
