"""ttrpc: containerd's small RPC over a byte stream. Framing and the envelope of calls; knows no service. Pure.

Frame: u32be data length, u32be stream id, u8 type, u8 flags, data. Clients use odd ids, ever growing; a unary call is
one request frame and one response frame of the same id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from google.protobuf.message import DecodeError

from koordlet.wire.ttrpc_pb2 import Request, Response, Status

MAX_DATA_BYTES: Final = 4 << 20
REQUEST: Final = 1
RESPONSE: Final = 2
_HEAD: Final = struct.Struct(">IIBB")


class Code(IntEnum):
    """The gRPC codes that are used here."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12


class TtrpcError(Exception):
    """The stream cannot be followed any more, or a message is not what it should be."""


@dataclass(frozen=True, slots=True)
class Frame:
    """kind: REQUEST, RESPONSE or another type that the reader is to refuse."""

    stream: int
    kind: int
    flags: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """A request. limit_s: the time that the caller gives, 0 without a limit."""

    service: str
    method: str
    payload: bytes
    limit_s: float = 0.0


class FrameReader:
    """One stream's bytes in, frames out. Holds at most one frame, of at most MAX_DATA_BYTES."""

    def __init__(self) -> None:
        self._held = bytearray()

    @property
    def incomplete(self) -> bool:
        """Within a frame."""
        return bool(self._held)

    def feed(self, piece: bytes) -> Iterator[Frame]:
        """Raises TtrpcError when a frame announces more than is allowed: what follows cannot be told apart."""
        self._held += piece
        while len(self._held) >= _HEAD.size:
            length, stream, kind, flags = _HEAD.unpack_from(self._held)
            if length > MAX_DATA_BYTES:
                raise TtrpcError(f"message of {length} bytes, at most {MAX_DATA_BYTES} are allowed")
            if len(self._held) < _HEAD.size + length:
                return
            data = bytes(self._held[_HEAD.size : _HEAD.size + length])
            del self._held[: _HEAD.size + length]
            yield Frame(stream, kind, flags, data)


def head(length: int, stream: int, kind: int) -> bytes:
    return _HEAD.pack(length, stream, kind, 0)


def read_call(data: bytes) -> Call:
    """Raises TtrpcError."""
    try:
        request = Request.FromString(data)
    except DecodeError as error:
        raise TtrpcError(f"not a request: {error}") from error
    return Call(request.service, request.method, request.payload, max(request.timeout_nano, 0) / 1e9)


def write_call(call: Call) -> bytes:
    """Data of a request frame."""
    nanoseconds = round(call.limit_s * 1e9)
    request = Request(service=call.service, method=call.method, payload=call.payload, timeout_nano=nanoseconds)
    return request.SerializeToString()


def read_answer(data: bytes) -> tuple[Code | int, str, bytes]:
    """(code, message, payload) of a response frame's data. Raises TtrpcError."""
    try:
        response = Response.FromString(data)
    except DecodeError as error:
        raise TtrpcError(f"not a response: {error}") from error
    return response.status.code, response.status.message, response.payload


def write_answer(payload: bytes) -> bytes:
    """Data of a successful response, empty for an empty message. Too large a payload becomes the error that it is."""
    data = Response(payload=payload).SerializeToString()
    if len(data) > MAX_DATA_BYTES:
        return write_error(Code.RESOURCE_EXHAUSTED, f"answer of {len(payload)} bytes is too large")
    return data


def write_error(code: Code, text: str) -> bytes:
    return Response(status=Status(code=code, message=text[:1024])).SerializeToString()
