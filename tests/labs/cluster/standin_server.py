"""The server of the stand-in kubelet: TLS, and the same questions to the API server that a kubelet asks.

Who is it? A client certificate of the lab's authority, else TokenReview of the bearer token; nobody gets 401. May it?
SubjectAccessReview for nodes/pods or nodes/configz, then nodes/proxy; otherwise 403. Answers are kept for a second.

    python -m tests.labs.cluster.standin_server FOLDER       with settings.json, pods and configz in FOLDER
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from tests.labs.cluster.api import Client
from tests.labs.cluster.lab import API_PORT
from tests.labs.cluster.pki import Pair

KEEP_S = 1.0
SUBRESOURCES = {"pods": ["pods", "proxy"], "configz": ["configz", "proxy"]}


@dataclass(frozen=True, slots=True)
class User:
    name: str
    groups: tuple[str, ...]


class Judge:
    """Asks the API server, and remembers the answers for KEEP_S."""

    def __init__(self, api: Client, node: str) -> None:
        self._api, self._node = api, node
        self._users: dict[str, tuple[float, User | None]] = {}
        self._rights: dict[tuple[User, str], tuple[float, bool]] = {}

    def user(self, token: str) -> User | None:
        until, user = self._users.get(token, (0.0, None))
        if time.monotonic() > until:
            answer = self._review("authentication", "TokenReview", {"token": token})
            told = answer.get("user", {})
            user = (
                User(told.get("username", ""), tuple(told.get("groups", ()))) if answer.get("authenticated") else None
            )
            self._users[token] = (time.monotonic() + KEEP_S, user)
        return user

    def may(self, user: User, subresource: str) -> bool:
        until, right = self._rights.get((user, subresource), (0.0, False))
        if time.monotonic() > until:
            what = {"verb": "get", "version": "v1", "resource": "nodes", "subresource": subresource, "name": self._node}
            spec = {"user": user.name, "groups": list(user.groups), "resourceAttributes": what}
            right = bool(self._review("authorization", "SubjectAccessReview", spec).get("allowed"))
            self._rights[user, subresource] = (time.monotonic() + KEEP_S, right)
        return right

    def _review(self, group: str, kind: str, spec: dict[str, Any]) -> Any:
        body = {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "spec": spec}
        return self._api.must("POST", f"/apis/{group}.k8s.io/v1/{kind.lower()}s", body)["status"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    judge: Judge
    folder: Path

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].strip("/")
        if name not in SUBRESOURCES:
            return self._send(404, b"404 page not found\n", "text/plain; charset=utf-8")
        user = self._user()
        if user is None:
            return self._send(401, b"Unauthorized", "text/plain; charset=utf-8")
        asked = SUBRESOURCES[name]
        if not any(self.judge.may(user, one) for one in asked):
            text = f"Forbidden (user={user.name}, verb=get, resource=nodes, subresource(s)=[{' '.join(asked)}])\n"
            return self._send(403, text.encode(), "text/plain; charset=utf-8")
        return self._send(200, (self.folder / name).read_bytes(), "application/json")

    def _user(self) -> User | None:
        assert isinstance(self.connection, ssl.SSLSocket)
        certificate = self.connection.getpeercert()
        if certificate:
            fields: dict[str, list[str]] = {}
            subject: Any = certificate["subject"]
            for ((key, value),) in subject:
                fields.setdefault(key, []).append(value)
            return User(fields["commonName"][0], (*fields.get("organizationName", ()), "system:authenticated"))
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        return self.judge.user(token) if scheme == "Bearer" and token else None

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: Any) -> None:
        print(format % words, file=sys.stderr, flush=True)


class Server(ThreadingHTTPServer):
    def server_bind(self) -> None:
        """Without HTTPServer's look-up of the host's name, which takes 10 s where there is no name server."""
        TCPServer.server_bind(self)


def _dial(address: str, port: int, timeout_s: float) -> socket.socket:
    return socket.create_connection((address, port), timeout_s)


def main() -> None:
    Handler.folder = Path(sys.argv[1])
    settings = json.loads((Handler.folder / "settings.json").read_text())
    authority = Path(settings["authority"])
    admin = Pair(*map(Path, settings["admin"]))
    Handler.judge = Judge(Client(_dial, "127.0.0.1", API_PORT, authority, pair=admin), settings["node"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(*settings["serving"])
    server = Server((settings["address"], settings["port"]), Handler)
    # The handshake is left to the first read, in the connection's own thread.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


if __name__ == "__main__":
    main()
