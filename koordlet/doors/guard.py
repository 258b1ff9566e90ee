"""Who may come in by -addr: TLS and a bearer token, both from files that are followed while the agent runs."""

from __future__ import annotations

import hmac
import os
import ssl
import threading
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""A kubelet's probe has no token, and these tell nothing worth one."""
TOKEN_MAX_BYTES: Final = 4096


class GuardError(Exception):
    """A certificate, key or token cannot be used; the text names the flag."""


class Tls:
    """The server's side of TLS. A pair of files that was replaced is used from the next connection on; a replacement
    that cannot be used leaves the present one. Raises GuardError when the first one cannot be used."""

    def __init__(self, cert_file: str, key_file: str) -> None:
        self._files = (cert_file, key_file)
        self._lock = threading.Lock()
        self._seen = self._signature()
        try:
            self._context = self._load()
        except OSError as error:  # ssl.SSLError among them
            raise GuardError(f"-tls-cert-file={cert_file} -tls-private-key-file={key_file}: {_why(error)}") from error

    def context(self) -> ssl.SSLContext:
        with self._lock:
            seen = self._signature()
            if seen != self._seen:
                self._seen = seen
                try:
                    self._context = self._load()
                    log.info("door.certificate_replaced", file=self._files[0])
                except OSError as error:
                    log.error("door.certificate_refused", file=self._files[0], error=_why(error))
            return self._context

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self._files, password=lambda: "")  # or it would ask on the terminal
        return context

    def _signature(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_stamp(name) for name in self._files)


class Token:
    """A bearer token. A file that was replaced counts at once; one that is gone or empty lets nobody in."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._stamp: tuple[int, int] | None = None
        self._wanted = b""
        if not self._read():
            raise GuardError(f"-auth-token-file={file}: cannot be read, or is empty")

    def admits(self, authorization: str) -> bool:
        """authorization: the request's header of that name, "" without one."""
        scheme, _, given = authorization.partition(" ")
        wanted = self._read()
        sent = given.strip().encode("utf-8", "surrogateescape")
        return scheme.lower() == "bearer" and bool(wanted) and hmac.compare_digest(sent, wanted)

    def _read(self) -> bytes:
        stamp = _stamp(self._file)
        if stamp is None or stamp != self._stamp:
            self._stamp = stamp
            try:
                with Path(self._file).open("rb") as file:
                    self._wanted = file.read(TOKEN_MAX_BYTES).strip()
            except OSError:
                self._wanted = b""
        return self._wanted


def _stamp(name: str) -> tuple[int, int] | None:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _why(error: OSError) -> str:
    return str(error.strerror or error)
