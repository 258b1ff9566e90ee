"""The node's kubelet over HTTP: `/pods` and `/configz`, undecoded (spec/api 3.2).

Where it is follows from the Node object, and may change with it. Its certificate is verified against the cluster's
authority, unless told otherwise; who we are is what the API server knows us by. The kubelet asks the API server whether
we may: for nodes/pods and nodes/configz, up to 1.32 for nodes/proxy (deploy/old-kubelets).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from koordlet.kube.access import Access
from koordlet.kube.client import Api
from koordlet.kube.errors import ApiError
from koordlet.kube.objects import NodeObject

PODS: Final = "/pods/"
CONFIG: Final = "/configz"
ADDRESS_TYPES: Final = ("Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP")


class Kubelet:
    """node: the Node object, None while it is not known. address_type: which of its addresses; any unknown word means
    InternalIP. authority: PEM file to verify with instead of the cluster's. verify: False trusts any certificate.
    plain: URL of its read-only port, to be asked instead and without credentials. observed: as Api's."""

    def __init__(
        self,
        access: Access,
        node: Callable[[], NodeObject | None],
        *,
        address_type: str = "InternalIP",
        authority: str | None = None,
        verify: bool = True,
        timeout_s: float = 3.0,
        plain: str = "",
        observed: Callable[[str, str, int, float], None] = lambda verb, path, status, seconds: None,
    ) -> None:
        self._access = replace(
            access, ca_file=authority or access.ca_file, verify=verify and access.verify, tls_server_name=None
        )
        if plain:
            self._access = Access(plain, lambda anew: {})
        self._plain = plain
        self._node, self._timeout_s, self._observed = node, timeout_s, observed
        self._type = address_type if address_type in ADDRESS_TYPES else "InternalIP"
        self._lock = threading.Lock()
        self._api: Api | None = None

    def read(self, path: str) -> bytes:
        """The body of an answer. Raises ApiError, with a hint where one helps."""
        try:
            return self._present().read(path)
        except ApiError as error:
            hint = _hint(error)
            if hint:
                raise ApiError(error.status, error.reason, f"{error.message}; {hint}") from error
            raise

    def close(self) -> None:
        with self._lock:
            if self._api is not None:
                self._api.close()
                self._api = None

    def _present(self) -> Api:
        url = self._url()
        with self._lock:
            if self._api is None or self._api.access.server != url:
                if self._api is not None:
                    self._api.close()
                access = replace(self._access, server=url)
                self._api = Api(access, connect_s=self._timeout_s, read_s=self._timeout_s, observed=self._observed)
            return self._api

    def _url(self) -> str:
        if self._plain:
            return self._plain
        node = self._node()
        if node is None:
            raise ApiError(0, "Unreachable", "where the kubelet listens is not known before the Node object is")
        endpoints = node.status.daemon_endpoints
        port = endpoints.kubelet_endpoint.port if endpoints and endpoints.kubelet_endpoint else 0
        address = next((one.address for one in node.status.addresses or () if one.type == self._type), "")
        if not address:
            raise ApiError(0, "Unreachable", f"the Node object has no address of type {self._type}")
        return f"https://{f'[{address}]' if ':' in address else address}:{port or 10250}"


def _hint(error: ApiError) -> str:
    if error.status == 403:
        return "kubelets before 1.33 ask for nodes/proxy: deploy/old-kubelets"
    if "CERTIFICATE_VERIFY_FAILED" in error.message or "certificate verify failed" in error.message:
        return (
            "it is verified with the cluster's authority; name the kubelets' own with --kubelet-certificate-authority, "
            "or do without by --kubelet-insecure-skip-verify"
        )
    return ""
