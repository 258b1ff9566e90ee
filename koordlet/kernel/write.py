"""The primitives that change a kernel file. Imported by act alone."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path


def write_file(path: Path, data: bytes) -> None:
    """One write call on an existing file. Raises OSError with `filename` set.

    Neither O_CREAT nor O_TRUNC: a cgroup file is never created by us, and truncating one is a second
    operation that some files answer with an error. A short write is EIO: the kernel takes a value whole
    or not at all, so half a value means that this is no kernel file.
    """
    name = os.fspath(path)
    fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC)
    try:
        written = os.write(fd, data)
    except OSError as error:
        error.filename = name
        raise
    finally:
        os.close(fd)
    if written != len(data):
        raise OSError(errno.EIO, f"short write, {written} of {len(data)} bytes", name)


def write_each(path: Path, items: Iterable[bytes]) -> list[OSError | None]:
    """One write call per item on one descriptor, going on after a refusal; the outcome of each. Raises OSError when
    the file cannot be opened."""
    name = os.fspath(path)
    outcomes: list[OSError | None] = []
    fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for item in items:
            try:
                os.write(fd, item)
                outcomes.append(None)
            except OSError as error:
                error.filename = name
                outcomes.append(error)
    finally:
        os.close(fd)
    return outcomes
