"""What the API server or a kubelet answers when it does not do what was asked."""

from __future__ import annotations


class ApiError(Exception):
    """status: HTTP's, 0 when there was no answer at all. reason: the server's word ("Conflict", "NotFound", ...), of
    our own "Unreachable" and "Malformed". message: one line. retry_after_s: as the server wishes, None without one."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else f"{reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def gone(self) -> bool:
        """The resource version asked for is no longer known: list anew."""
        return self.status == 410 or self.reason == "Expired"


class AccessError(Exception):
    """There is no way to a cluster; the text says what was looked for, or what is wrong with the file."""
