"""The HTTP door of -addr: its guards and the audit's query page, as the flags have them."""

from __future__ import annotations

from koordlet.config.flags import Flags
from koordlet.doors.guard import GuardError, Tls, Token
from koordlet.doors.http import DoorError, HttpDoor
from koordlet.report.auditquery import AuditQuery
from koordlet.report.pages import Page, Pages


def events_page(flags: Flags) -> Page | None:
    """/events exists with gate AuditEventsHTTPHandler; without AuditEvents it has nothing to tell."""
    if "AuditEventsHTTPHandler" not in flags.gates.enabled:
        return None
    return AuditQuery(
        flags.audit_log_dir if flags.audit else None,
        max_readers=flags.audit_max_concurrent_readers,
        max_events=flags.audit_max_events_limit,
    ).page


def http_door(flags: Flags, socket_path: str, pages: Pages) -> HttpDoor:
    """Raises DoorError."""
    try:
        tls = Tls(flags.tls_cert_file, flags.tls_private_key_file) if flags.tls_cert_file else None
        token = Token(flags.auth_token_file) if flags.auth_token_file else None
    except GuardError as error:
        raise DoorError(str(error)) from error
    return HttpDoor(flags.addr, socket_path, pages.public(), pages.private(), tls=tls, token=token)
