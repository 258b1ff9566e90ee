"""A small HTTPS client for the lab's API server and kubelets: one connection per request, JSON in and out."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.labs.cluster.pki import Pair

MERGE_PATCH = "application/merge-patch+json"
# kind -> group and version, plural, whether it lies in a namespace: what the lab creates from manifests.
KINDS = {
    "Namespace": ("/api/v1", "namespaces", False),
    "Node": ("/api/v1", "nodes", False),
    "Pod": ("/api/v1", "pods", True),
    "Event": ("/api/v1", "events", True),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims", True),
    "ServiceAccount": ("/api/v1", "serviceaccounts", True),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "DaemonSet": ("/apis/apps/v1", "daemonsets", True),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "NodeSLO": ("/apis/slo.koordinator.sh/v1alpha1", "nodeslos", False),
    "NodeMetric": ("/apis/slo.koordinator.sh/v1alpha1", "nodemetrics", False),
    "NodeResourceTopology": ("/apis/topology.node.k8s.io/v1alpha1", "noderesourcetopologies", False),
    "Device": ("/apis/scheduling.koordinator.sh/v1alpha1", "devices", False),
}
Manifest = Mapping[str, Any]


class RefusedError(Exception):
    """The server did not answer with 2xx. `status` is HTTP's."""

    def __init__(self, what: str, status: int, text: str) -> None:
        super().__init__(f"{what}: {status} {text[:500]}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        return json.loads(self.body)


class _Connection(http.client.HTTPSConnection):
    def __init__(self, host: str, made: Callable[[], socket.socket], context: ssl.SSLContext) -> None:
        super().__init__(host, context=context)
        self._made, self._tls = made, context

    def connect(self) -> None:
        plain = self._made()
        try:
            self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise


class Client:
    """Speaks as the holder of `token` or of the certificate `pair`, as nobody without both.

    `connect(address, port, timeout_s)` makes the connection (Sandbox.connect). Network errors are OSErrors.
    """

    def __init__(
        self,
        connect: Callable[[str, int, float], socket.socket],
        address: str,
        port: int,
        authority: Path,
        token: str = "",
        pair: Pair | None = None,
    ) -> None:
        self.address, self.port, self.token = address, port, token
        self._connect = connect
        self._context = ssl.create_default_context(cafile=str(authority))
        if pair is not None:
            self._context.load_cert_chain(pair.certificate, pair.key)

    def request(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", timeout_s: float = 15
    ) -> Answer:
        """Whatever the status is. `body` is sent as JSON of content type `kind`."""
        connection, response = self._send(method, path, body, kind, timeout_s)
        try:
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def status(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> int:
        """The status alone: of a watch too, which would not end."""
        connection, response = self._send(method, path, body, kind, 15)
        try:
            return response.status
        finally:
            response.close()
            connection.close()

    def must(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """The JSON answer; RefusedError unless 2xx."""
        answer = self.request(method, path, body, kind)
        if answer.status >= 300:
            raise RefusedError(f"{method} {path}", answer.status, answer.text)
        return answer.json()

    def get(self, path: str) -> Any:
        return self.must("GET", path)

    def create(self, manifest: Manifest, namespace: str = "lab") -> Any:
        return self.must("POST", collection(manifest, namespace), manifest)

    def delete(self, path: str) -> None:
        """At once, without grace; that it is gone already is fine."""
        answer = self.request("DELETE", f"{path}?gracePeriodSeconds=0")
        if answer.status >= 300 and answer.status != 404:
            raise RefusedError(f"DELETE {path}", answer.status, answer.text)

    def watch(self, path: str, seconds: int) -> Iterator[dict[str, Any]]:
        """Events until the server ends the watch after `seconds`."""
        mark = "&" if "?" in path else "?"
        connection, response = self._send(
            "GET", f"{path}{mark}watch=1&timeoutSeconds={seconds}", None, "", seconds + 15
        )
        try:
            if response.status >= 300:
                raise RefusedError(f"watch {path}", response.status, response.read().decode(errors="replace"))
            for line in response:
                yield json.loads(line)
        finally:
            response.close()
            connection.close()

    def _send(
        self, method: str, path: str, body: Any, kind: str, timeout_s: float
    ) -> tuple[_Connection, http.client.HTTPResponse]:
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if body is not None:
            headers["Content-Type"] = kind
        connection = _Connection(self.address, lambda: self._connect(self.address, self.port, timeout_s), self._context)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise


def collection(manifest: Manifest, namespace: str = "lab") -> str:
    """URL path that this kind of object is created at."""
    base, plural, namespaced = KINDS[manifest["kind"]]
    where = manifest["metadata"].get("namespace", namespace)
    return f"{base}/namespaces/{where}/{plural}" if namespaced else f"{base}/{plural}"


def path_of(manifest: Manifest, namespace: str = "lab") -> str:
    """URL path of this object."""
    return f"{collection(manifest, namespace)}/{manifest['metadata']['name']}"
