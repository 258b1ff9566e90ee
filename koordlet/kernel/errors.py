"""What can go wrong with a kernel file: garbage content, a file that is gone, a feature that is off."""

from __future__ import annotations

import errno
from os import PathLike, fspath
from typing import Final

_SHOWN: Final = 80
"""Bytes of bad content kept in an error; enough to recognise the file, small enough for one log line."""

_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.ENOTDIR})
_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOENT})


class KernelFileError(Exception):
    """A file was read but its content is not what the kernel documents.

    path: full path, or the bare file name where a pure parser had only text. content: its first bytes.
    """

    def __init__(self, path: str | PathLike[str], reason: str, content: str | bytes = "") -> None:
        self.path = fspath(path)
        self.reason = reason
        self.content = content[:_SHOWN]
        super().__init__(f"{self.path}: {reason}, content {self.content!r}")

    def at(self, path: str | PathLike[str]) -> KernelFileError:
        """The same fault, naming the file on disk instead of the parser's short name."""
        return KernelFileError(path, self.reason, self.content)


def is_gone(error: OSError) -> bool:
    """The cgroup, device or process vanished (or never was): an ordinary state, not a fault."""
    return error.errno in _GONE


def is_unsupported(error: OSError) -> bool:
    """This kernel has no such file, or has it switched off (PSI files under psi=0 answer EOPNOTSUPP)."""
    return error.errno in _UNSUPPORTED
