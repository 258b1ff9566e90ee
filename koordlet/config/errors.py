"""The two ways in which configuration can be wrong: the command line, and a file."""

from __future__ import annotations

_SHOWN = 80


class UsageError(Exception):
    """The command line cannot be used; the process ends with exit_code, as Go's flag package does."""

    exit_code = 2


class PolicyError(Exception):
    """A file or annotation holds something that is not allowed; nothing of it was applied.

    file: where it stands. key: dotted path inside ("" for the document). value: what stands there.
    allowed: what may stand there.
    """

    def __init__(self, file: str, key: str, value: object, allowed: str) -> None:
        super().__init__(file, key, value, allowed)
        self.file, self.key, self.value, self.allowed = file, key, value, allowed

    def __str__(self) -> str:
        where = f"{self.file}: {self.key}" if self.key else self.file
        return f"{where}: {shown(self.value)} is not allowed, expected {self.allowed}"


def shown(value: object) -> str:
    """A stranger's value in a message: one line, bounded."""
    text = repr(value) if not isinstance(value, (dict, list)) else type(value).__name__
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
