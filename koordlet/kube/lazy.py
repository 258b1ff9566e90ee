"""The REST layer of the official Kubernetes client without the rest of it.

`import kubernetes` loads every sub-package (24 MB, some 200 ms). Before the first import a finder answers for those
that we do not use with the standard library's LazyLoader, so each is loaded on first use, by whomever. Should a release
defeat this, the plain import costs memory, not correctness; tests/budget notices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any, Final, NamedTuple

_UNUSED: Final = frozenset(
    f"kubernetes.{name}" for name in ("config", "dynamic", "watch", "stream", "utils", "leaderelection", "informer")
)


class Rest(NamedTuple):
    """Classes of the official client. failures: what it raises when there is no answer. hush: no warning for each
    request to a server that is not verified."""

    Client: Any
    Configuration: Any
    failures: tuple[type[Exception], ...]
    hush: Callable[[], None]


def load() -> Rest:
    """Call it first on the main thread: until 3.12 two threads may race for a lazy module (python/cpython#114763)."""
    if "kubernetes" not in sys.modules:
        sys.meta_path.insert(0, _Finder)
        try:
            import_module("kubernetes")
        finally:
            sys.meta_path.remove(_Finder)
    from kubernetes.client.configuration import Configuration
    from kubernetes.client.exceptions import ApiException
    from kubernetes.client.rest import RESTClientObject
    from urllib3 import disable_warnings
    from urllib3.exceptions import HTTPError, InsecureRequestWarning

    failures = (ApiException, HTTPError, OSError, ValueError)
    return Rest(RESTClientObject, Configuration, failures, lambda: disable_warnings(InsecureRequestWarning))


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _UNUSED:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec
