"""One write as one system call, and its outcome as the name of the errno."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path


def outcome(action: Callable[[], object]) -> str:
    """ "" for success, else EINVAL, ENOSPC..."""
    try:
        action()
    except OSError as e:
        return errno.errorcode[e.errno or 0]
    return ""


def write(path: Path, text: str) -> str:
    def once() -> None:
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    return outcome(once)


def values(path: Path) -> dict[str, str]:
    """A schemata or size file: resource -> its part after the colon."""
    return dict(line.strip().split(":", 1) for line in path.read_text().splitlines())
