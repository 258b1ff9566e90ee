"""A little API server on loopback: objects by path, lists, watches, and the answers of one that is in trouble.

For tests of what the agent does with answers; that a real server gives them is the cluster lab's matter.
"""

from __future__ import annotations

import copy
import json
import queue
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Reply = tuple[int, Any, dict[str, str]]
"""Status, body (bytes are sent as they are, anything else as JSON), headers."""


class ApiServer:
    """`url`; objects are put and seen by path ("/api/v1/nodes/a"). requests: (verb, path, body) in order.

    refuse: what to answer instead, by (verb, path); return None to answer as usual. date: what its answers say of the
    time, "" leaves that out.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.refuse: Callable[[str, str], Reply | None] = lambda verb, path: None
        self.date = ""
        self.expired_below = 0
        self.lock = threading.Lock()
        self.version = 100
        self.watches: list[tuple[str, queue.Queue[bytes | None]]] = []
        self.history: list[tuple[int, str, bytes]] = []  # version, collection, line
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"api": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.end_watches()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def put(self, path: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Create or replace, as anybody."""
        with self.lock:
            return self._store(path, content)

    def remove(self, path: str) -> None:
        with self.lock:
            gone = self.objects.pop(path)
            self.version += 1
            gone["metadata"]["resourceVersion"] = str(self.version)
            self._tell(path, "DELETED", gone)

    def send(self, collection: str, line: bytes) -> None:
        """To all watches of a collection, whatever it is."""
        with self.lock:
            for path, lines in self.watches:
                if path == collection:
                    lines.put(line)

    def end_watches(self) -> None:
        with self.lock:
            for _, lines in self.watches:
                lines.put(None)

    def expire(self) -> None:
        """Forget all history: a watch from any version until now gets 410."""
        with self.lock:
            self.version += 1
            self.expired_below = self.version
            self.history.clear()

    def count(self, verb: str, path: str) -> int:
        return sum(1 for one, where, _ in self.requests if (one, where) == (verb, path))

    # below: with the lock held

    def _store(self, path: str, content: Mapping[str, Any]) -> dict[str, Any]:
        self.version += 1
        before = self.objects.get(path)
        made = copy.deepcopy(dict(content))
        meta = made.setdefault("metadata", {})
        meta.setdefault("name", path.rpartition("/")[2])
        meta["uid"] = before["metadata"]["uid"] if before else f"uid-{self.version}"
        meta["resourceVersion"] = str(self.version)
        self.objects[path] = made
        self._tell(path, "MODIFIED" if before else "ADDED", made)
        return made

    def _tell(self, path: str, kind: str, content: Any) -> None:
        line = json.dumps({"type": kind, "object": content}).encode()
        self.history.append((self.version, path.rpartition("/")[0], line))
        for collection, lines in self.watches:
            if collection == path.rpartition("/")[0]:
                lines.put(line)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: ApiServer

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def do_PATCH(self) -> None:
        self._serve("PATCH")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _serve(self, verb: str) -> None:
        found = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(found.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        shown = "WATCH" if "watch" in query else verb
        with self.api.lock:
            self.api.requests.append((shown, found.path, body))
            self.api.headers.append(dict(self.headers))
        reply = self.api.refuse(shown, found.path)
        if reply is not None:
            return self._send(*reply)
        if shown == "WATCH":
            return self._watch(found.path, query)
        with self.api.lock:
            reply = self._answer(verb, found.path, body, query)
        return self._send(*reply)

    def _answer(self, verb: str, path: str, body: Any, query: dict[str, str]) -> Reply:
        known = self.api.objects
        owner = path.removesuffix("/status")
        if verb == "GET" and path in known:
            return 200, known[path], {}
        if verb == "GET":
            name = query.get("fieldSelector", "").removeprefix("metadata.name=")
            below = [v for k, v in known.items() if k.rpartition("/")[0] == path]
            if not below and not name:
                return status(404, "NotFound", path)
            items = [v for v in below if v["metadata"]["name"] == name or not name]
            return 200, {"metadata": {"resourceVersion": str(self.api.version)}, "items": items}, {}
        if verb == "POST":
            where = f"{path}/{body['metadata'].get('name', '')}"
            if where in known:
                return status(409, "AlreadyExists", where)
            return 201, self.api._store(where, body), {}
        if owner not in known:
            return status(404, "NotFound", owner)
        if verb == "DELETE":
            gone = known.pop(owner)
            self.api.version += 1
            gone["metadata"]["resourceVersion"] = str(self.api.version)
            self.api._tell(owner, "DELETED", gone)
            return 200, gone, {}
        if verb == "PUT":
            version = body["metadata"].get("resourceVersion")
            if version and version != known[owner]["metadata"]["resourceVersion"]:
                return status(409, "Conflict", owner)
            return 200, self.api._store(owner, body), {}
        return 200, self.api._store(owner, merged(known[owner], body)), {}

    def _watch(self, path: str, query: dict[str, str]) -> None:
        lines: queue.Queue[bytes | None] = queue.Queue()
        with self.api.lock:
            version = int(query.get("resourceVersion") or 0)
            old = version < self.api.expired_below
            if not old:
                for at, collection, line in self.api.history:
                    if at > version and collection == path:
                        lines.put(line)
                self.api.watches.append((path, lines))
        if old:
            told = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "old"}}
            return self._send(200, json.dumps(told).encode() + b"\n", {})
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while (line := lines.get()) is not None:
                self.wfile.write(b"%x\r\n%s\n\r\n" % (len(line) + 1, line))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
        finally:
            with self.api.lock:
                self.api.watches.remove((path, lines))

    def _send(self, code: int, body: Any, headers: dict[str, str]) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def send_response(self, code: int, message: str | None = None) -> None:
        self.send_response_only(code, message)
        if self.api.date:
            self.send_header("Date", self.api.date)

    def log_message(self, format: str, *words: Any) -> None:
        pass


def status(code: int, reason: str, message: str = "", **headers: str) -> Reply:
    """How an API server refuses."""
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return code, body, {name.replace("_", "-"): value for name, value in headers.items()}


def merged(base: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, Mapping):
        return patch
    made = dict(base) if isinstance(base, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merged(made.get(name), value)
    return made
