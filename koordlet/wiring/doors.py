"""The HTTP door of -addr: its guards and the audit's query page, as the flags have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import structlog

from koordlet.config.flags import Flags
from koordlet.doors.guard import GuardError, Tls, Token
from koordlet.doors.http import DoorError, HttpDoor
from koordlet.kernel.host import Host
from koordlet.model.pod import Pod
from koordlet.report.auditquery import AuditQuery
from koordlet.report.pages import Page, Pages

if TYPE_CHECKING:
    from koordlet.doors.podresources import PodResourcesDoor

log = structlog.get_logger(__name__)


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
    return HttpDoor(
        flags.addr, socket_path, pages.public(), pages.private(), actions=pages.actions(), tls=tls, token=token
    )


def pod_resources_door(
    flags: Flags, host: Host, pods: Callable[[], Iterable[Pod]], gpu_ids: Callable[[], Mapping[int, str]] = dict
) -> PodResourcesDoor | None:
    """The started proxy; None with gate PodResourcesProxy off, without a kubelet's socket to stand before, or when it
    cannot listen: its absence is told, and is no reason not to protect the node."""
    kubelet = host.kubelet_root / "pod-resources/kubelet.sock"
    if "PodResourcesProxy" not in flags.gates.enabled or flags.standalone:
        return None
    if not kubelet.parent.is_dir():
        log.warning("podresources.no_kubelet", directory=str(kubelet.parent))
        return None
    from koordlet.doors.podresources import PodResourcesDoor  # grpc: 16 MB, 2.5 of them private

    door = PodResourcesDoor(str(flags.pod_resources_proxy_path / "kubelet.sock"), str(kubelet), pods, gpu_ids)
    try:
        door.start()
    except DoorError as error:
        log.error("podresources.failed", error=str(error))
        return None
    return door
