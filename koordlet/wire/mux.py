"""NRI's multiplexer: two byte streams on one socket, told apart by a connection id in front of each chunk. Pure.

Frame: u32be id, u32be length, payload. Frames are no messages: what a peer sends as one message may come in any number
of frames. The other way round a Go peer wants every frame to fit the buffer that it reads with (see `frames`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

PLUGIN_CONN: Final = 1
"""The runtime calls, the plugin answers."""
RUNTIME_CONN: Final = 2
"""The plugin calls, the runtime answers."""
MAX_PAYLOAD_BYTES: Final = 1 << 24
"""The largest frame that any release sends (before 0.8; later ones end at 4 MiB + 10)."""
_HEAD: Final = struct.Struct(">II")


class MuxError(Exception):
    """The peer does not speak this protocol; the connection cannot be used any more."""


class MuxReader:
    """Bytes in, (id, piece) out; keeps no payload. Pieces of one id, joined, are that id's byte stream."""

    def __init__(self) -> None:
        self._head = b""
        self._conn = 0
        self._left = 0

    @property
    def incomplete(self) -> bool:
        """Within a frame."""
        return bool(self._head) or self._left > 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Pieces of known and unknown ids. Raises MuxError at a frame that is too large."""
        at = 0
        while at < len(data):
            if self._left == 0:
                take = _HEAD.size - len(self._head)
                self._head += data[at : at + take]
                at += take
                if len(self._head) < _HEAD.size:
                    return
                self._conn, self._left = _HEAD.unpack(self._head)
                self._head = b""
                if self._left > MAX_PAYLOAD_BYTES:
                    raise MuxError(f"frame of {self._left} bytes, at most {MAX_PAYLOAD_BYTES} are allowed")
                continue
            piece = data[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            yield self._conn, piece


def frames(conn: int, head: bytes, body: bytes) -> bytes:
    """One message in two frames, its head alone in the first.

    A Go peer reads heads through a buffer of 4096 bytes and breaks the connection when a frame does not fit what it
    asked for; with the head alone it asks for the body's whole length next. An empty frame is never sent: it would
    read as the end.
    """
    if not body:
        return b"".join((_HEAD.pack(conn, len(head)), head))
    return b"".join((_HEAD.pack(conn, len(head)), head, _HEAD.pack(conn, len(body)), body))
