"""`koordlet.json`: how koord-runtime-proxy learns where we listen and for which stages (spec/hooks 1.4, R-G3).

The proxy crashes on a file that is empty or half written when it first sees it, so the file appears whole, under a name
that the proxy does not read before; later it is changed in place, never through an empty file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

FILE: Final = "koordlet.json"
_MAX_BYTES: Final = 1 << 16


class Registration:
    """The file in the proxy's directory. Methods raise OSError."""

    def __init__(self, directory: Path, endpoint: str, failure_policy: str, stages: Iterable[str]) -> None:
        self.path = directory / FILE
        self._content = json.dumps(
            {"remote-endpoint": endpoint, "failure-policy": failure_policy, "runtime-hooks": sorted(stages)}
        ).encode()

    def put(self) -> None:
        """Only when the server accepts calls. An equal file is left alone: the proxy takes any change for news."""
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = self._read()
        if found == self._content:
            return
        if found:
            self._change()
        else:
            self._appear()

    def remove(self) -> None:
        """Only ours: another's registration under this name stays."""
        with suppress(FileNotFoundError):
            if self._read() == self._content:
                self.path.unlink()

    def _read(self) -> bytes | None:
        """None where there is no file of one kind."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        with open(fd, "rb") as file:
            return file.read(_MAX_BYTES)

    def _appear(self) -> None:
        """Also over an empty file, which the proxy cannot use anyway."""
        hidden = self.path.with_name(".koordlet.tmp")
        with suppress(FileNotFoundError):
            hidden.unlink()
        fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, self._content)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(hidden, self.path)

    def _change(self) -> None:
        """Same inode, one write, then cut: a reader sees the old text, the new one, or one that does not parse."""
        fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.pwrite(fd, self._content, 0)
            os.ftruncate(fd, len(self._content))
            os.fsync(fd)
        finally:
            os.close(fd)
