"""Who we are to a runtime, and whether it has started us itself."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(r"[A-Za-z0-9._+-]{1,128}")
_INDEX: Final = re.compile(r"[0-9]{2}")


@dataclass(frozen=True, slots=True)
class Identity:
    """name: letters, digits and ._+-; index: two digits, the place in the runtime's chain. Raises ValueError."""

    name: str
    index: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"NRI plugin name {self.name[:64]!r}: letters, digits and ._+- only")
        if not _INDEX.fullmatch(self.index):
            raise ValueError(f"NRI plugin index {self.index[:64]!r}: exactly two digits")


def launched(env: Mapping[str, str]) -> tuple[Identity, socket.socket] | None:
    """Identity and connection that a runtime gave us as it started us from its plugin directory; None when we were
    started otherwise. Raises ValueError for an environment that is half of that."""
    number = env.get("NRI_PLUGIN_SOCKET")
    if number is None:
        return None
    if not (number.isascii() and number.isdigit() and 2 < int(number) < 1 << 16):
        raise ValueError(f"NRI_PLUGIN_SOCKET={number[:32]!r} is no descriptor")
    identity = Identity(env.get("NRI_PLUGIN_NAME", ""), env.get("NRI_PLUGIN_IDX", ""))
    try:
        os.set_inheritable(int(number), False)
        connection = socket.socket(fileno=int(number))
    except OSError as error:
        raise ValueError(f"NRI_PLUGIN_SOCKET={number}: {error.strerror}") from error
    return identity, connection
