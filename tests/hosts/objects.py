"""What an API server keeps, for unit tests of publications: versions, conflicts. The real one is in the lab."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from koordlet.kube.errors import ApiError


class Objects:
    """Has the calls of `koordlet.kube.client.Api` that publications make. calls: (verb, path) of each.

    before: run ahead of each call, to play somebody else or an outage (raise ApiError).
    """

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda verb, path: None
        self._version = 100

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [call for call in self.calls if call[0] != "get"]

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """As somebody else would."""
        self._version += 1
        found = copy.deepcopy(body)
        found.setdefault("metadata", {})["resourceVersion"] = str(self._version)
        self.stored[path] = found
        return copy.deepcopy(found)

    def get(self, path: str, params: Any = None, *, type: Any = None) -> Any:
        self._called("get", path)
        if path not in self.stored:
            raise ApiError(404, "NotFound", path)
        return copy.deepcopy(self.stored[path])

    def create(self, path: str, body: dict[str, Any]) -> Any:
        self._called("create", path)
        path = f"{path}/{body['metadata']['name']}"
        if path in self.stored:
            raise ApiError(409, "AlreadyExists", path)
        return self.put(path, body)

    def update(self, path: str, body: dict[str, Any]) -> Any:
        self._called("update", path)
        if path not in self.stored:
            raise ApiError(404, "NotFound", path)
        if body["metadata"].get("resourceVersion") != self.stored[path]["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", path)
        return self.put(path, body)

    def _called(self, verb: str, path: str) -> None:
        self.before(verb, path)
        self.calls.append((verb, path))
