"""Where the API server is and who we are to it: in a cluster, or by a kubeconfig file (spec/api 3.1).

A service account's token is rotated on disk about once an hour: the file is looked at again each minute, and at once
when the server refuses what we have.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordlet.kube.errors import AccessError

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LOOK_EVERY_S: Final = 60.0


class TokenFile:
    """A bearer token that somebody else rotates."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._lock = threading.Lock()
        self._token, self._mtime_ns, self._looked_s = "", -1, float("-inf")

    def get(self, *, anew: bool = False) -> str:
        """The present token; anew: doubt what is known. An unreadable file keeps the last one."""
        with self._lock:
            if anew or self._clock() - self._looked_s >= LOOK_EVERY_S:
                self._looked_s = self._clock()
                try:
                    mtime_ns = self._path.stat().st_mtime_ns
                    if anew or mtime_ns != self._mtime_ns:
                        self._token = self._path.read_text("ascii").strip() or self._token
                        self._mtime_ns = mtime_ns
                except (OSError, UnicodeDecodeError):
                    pass  # half way through a rotation, or an unmounted volume: the server will say if it matters
            return self._token


@dataclass(frozen=True, slots=True)
class Access:
    """server: URL. headers(anew): what says who we are; anew: doubt what is known. ca_file, cert_file, key_file: PEM
    or None. verify: False trusts any server."""

    server: str
    headers: Callable[[bool], dict[str, str]]
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    tls_server_name: str | None = None


def find_access(kubeconfig: str, env: Mapping[str, str]) -> Access:
    """--kubeconfig, then $KUBECONFIG, the pod's own account, ~/.kube/config. Raises AccessError."""
    for path in (kubeconfig, env.get("KUBECONFIG", "")):
        if path:
            return by_kubeconfig(path)
    if env.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(env)
    home = Path(env.get("HOME") or "/root") / ".kube" / "config"
    if home.is_file():
        return by_kubeconfig(str(home))
    raise AccessError(
        f"no cluster found: --kubeconfig and $KUBECONFIG are empty, this is no pod (no $KUBERNETES_SERVICE_HOST), "
        f"and there is no {home}"
    )


def in_cluster(env: Mapping[str, str], account: Path = ACCOUNT) -> Access:
    """The account that every pod gets mounted. Raises AccessError."""
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT") or "443"
    authority = account / "ca.crt"
    for path in (authority, account / "token"):
        if not os.access(path, os.R_OK):
            raise AccessError(f"{path}: not readable; is automountServiceAccountToken off?")
    token = TokenFile(account / "token")
    if not token.get():
        raise AccessError(f"{account / 'token'}: empty")

    def headers(anew: bool) -> dict[str, str]:
        return {"Authorization": f"Bearer {token.get(anew=anew)}"}

    return Access(f"https://{f'[{host}]' if ':' in host else host}:{port}", headers, str(authority))


def by_kubeconfig(path: str) -> Access:
    """A kubeconfig, read by the official client (its weight is paid only here). Raises AccessError."""
    from koordlet.kube.lazy import load

    rest = load()
    import yaml
    from kubernetes.config import ConfigException, load_kube_config

    found: Any = rest.Configuration(host="")
    try:
        load_kube_config(config_file=path, client_configuration=found)
    except (ConfigException, yaml.YAMLError, OSError, ValueError, KeyError, TypeError) as error:
        raise AccessError(f"{path}: {' '.join(str(error).split())[:300]}") from error

    def headers(anew: bool) -> dict[str, str]:
        settings = found.auth_settings()
        return {one["key"]: one["value"] for one in settings.values() if one["in"] == "header" and one["value"]}

    return Access(
        found.host.rstrip("/"),
        headers,
        found.ssl_ca_cert,
        found.cert_file,
        found.key_file,
        found.verify_ssl,
        found.tls_server_name or None,
    )
