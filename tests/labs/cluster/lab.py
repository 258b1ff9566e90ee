"""Cluster lab: a real etcd and kube-apiserver on loopback of a network namespace of their own, with this project's CRDs
and exactly the permissions that deploy/ ships. node.py adds a real kubelet with containerd to it.

Ask for the fixtures `cluster` or `cluster_node` (fixture.py). By hand: make lab-cluster.

What differs from a cluster that people run: no controller-manager and no scheduler (a pod names its node, default
accounts are made by the lab, a PDB's status is the test's to write); the admission plugins Priority (a pod's
spec.priority is taken as given) and TaintNodesByCondition (nobody would take the taint away) are off; nothing is made
durable.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.labs import binaries
from tests.labs.cluster import pki
from tests.labs.cluster.api import Client, collection
from tests.labs.cluster.sandbox import ROOT, LabError, Sandbox

API_PORT, ETCD_PORT, ETCD_PEER_PORT = 6443, 2379, 2380  # in a network of its own there is nobody to collide with
ISSUER = "https://kubernetes.default.svc"
NAMESPACE = "lab"
AGENT_NAMESPACE, AGENT = "koordinator-system", "koordlet"
SKEW_S = 60  # by so much may a token be over time for the API server


class Cluster:
    """A running control plane. `admin` may do everything; `agent()` is who deploy/base/rbac.yaml says."""

    def __init__(self) -> None:
        self.sandbox = Sandbox()
        self.versions: dict[str, str] = {}
        self.starts: dict[str, float] = {}  # seconds that each part took to start

    def start(self) -> Cluster:
        kubernetes, etcd = binaries.binaries("kubernetes"), etcd_program()
        begun = time.monotonic()
        self.sandbox.open()
        try:
            self._certificates()
            self._start_etcd(etcd)
            self.sandbox.wait("etcd", self._etcd_answers, 30, "etcd")
            self.start_apiserver(kubernetes)
            self._populate()
        except BaseException:
            self.stop()
            raise
        self.starts = {"control plane": time.monotonic() - begun}
        self.versions = {"kube-apiserver": binaries.part("kubernetes").version, "etcd": program_version(etcd)}
        return self

    def stop(self) -> None:
        self.sandbox.close()

    # who speaks

    def client(self, token: str = "", pair: pki.Pair | None = None) -> Client:
        """Nobody, or the holder of an account token or a certificate."""
        return Client(self.sandbox.connect, "127.0.0.1", API_PORT, self.authority.own.certificate, token, pair)

    def agent(self) -> Client:
        return self.client(self.token(AGENT_NAMESPACE, AGENT))

    def token(self, namespace: str, account: str, seconds: int = 3600) -> str:
        """A ServiceAccount's token that is good for `seconds` from now; negative: it expired so long ago.

        TokenRequest gives nothing below 600 s, so the lab signs those itself. The server allows for 60 s of skew,
        which is taken off; a token used within the last 10 s stays good that much longer (its cache), an open watch
        for good.
        """
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}"
        if seconds >= 600:
            wish = {"spec": {"audiences": [ISSUER], "expirationSeconds": seconds}}
            return str(self.admin.must("POST", f"{path}/token", wish)["status"]["token"])
        uid, end = self.admin.get(path)["metadata"]["uid"], int(time.time()) + seconds - SKEW_S
        about = {"namespace": namespace, "serviceaccount": {"name": account, "uid": uid}}
        claims = {
            "iss": ISSUER,
            "aud": [ISSUER],
            "sub": f"system:serviceaccount:{namespace}:{account}",
            "iat": end - 3600,
            "nbf": end - 3600,
            "exp": end,
            "kubernetes.io": about,
        }
        return pki.sign(claims, self.signing_key)

    def kubeconfig(self, name: str, user: Mapping[str, str]) -> Path:
        """A file for a process that runs inside. `user` as in there: token, or client-certificate and client-key."""
        server = {
            "server": f"https://127.0.0.1:{API_PORT}",
            "certificate-authority": str(self.authority.own.certificate),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
            "clusters": [{"name": "lab", "cluster": server}],
            "users": [{"name": "lab", "user": dict(user)}],
        }
        path = self.sandbox.work / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    # what happens to it

    def start_apiserver(self, folder: Path | None = None) -> None:
        """Also after `stop_apiserver`: same port, same data."""
        tls, kubelet, work = self.serving, self.kubelet_client, self.authority.folder
        key, ca = self.signing_key, self.authority.own.certificate
        flags = {
            "etcd-servers": f"http://127.0.0.1:{ETCD_PORT}",
            "bind-address": "127.0.0.1",
            "secure-port": API_PORT,
            "cert-dir": work,
            "endpoint-reconciler-type": "none",  # a loopback address may not stand in the "kubernetes" Endpoints
            "service-cluster-ip-range": "10.96.0.0/24",
            "allow-privileged": "true",  # as wherever DaemonSets manage nodes; its default is false
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "disable-admission-plugins": "Priority,TaintNodesByCondition",
            "client-ca-file": ca,
            "tls-cert-file": tls.certificate,
            "tls-private-key-file": tls.key,
            "service-account-issuer": ISSUER,
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "service-account-extend-token-expiration": "false",  # or a test of expiry waits a year
            "kubelet-client-certificate": kubelet.certificate,
            "kubelet-client-key": kubelet.key,
            "kubelet-certificate-authority": ca,
            "kubelet-preferred-address-types": "InternalIP",
            "min-request-timeout": 5,
        }
        program = (folder or binaries.binaries("kubernetes")) / "kube-apiserver"
        words = [str(program), *(f"--{name}={value}" for name, value in flags.items())]
        self.sandbox.spawn("kube-apiserver", words, mounts=False)
        self.sandbox.wait("kube-apiserver", lambda: self.admin.status("GET", "/readyz") == 200, 120, "kube-apiserver")

    def stop_apiserver(self, number: signal.Signals = signal.SIGKILL) -> None:
        """A crash, or with SIGTERM the orderly way (some seconds)."""
        self.sandbox.end("kube-apiserver", number)

    def compact(self) -> int:
        """Forget all history. After a restart of the API server a watch from an older version gets 410 Gone."""
        head = self._etcd("/v3/kv/range", {"key": base64.b64encode(b"/").decode()})["header"]["revision"]
        self._etcd("/v3/kv/compaction", {"revision": head, "physical": True})
        return int(head)

    def apply(self, manifests: Sequence[Mapping[str, Any]], namespace: str = NAMESPACE) -> None:
        """Create all; objects that are there already stay as they are."""
        for manifest in manifests:
            answer = self.admin.request("POST", collection(manifest, namespace), manifest)
            if answer.status >= 300 and answer.status != 409:
                raise LabError(
                    f"{manifest['kind']} {manifest['metadata']['name']}: {answer.status} {answer.text[:1000]}"
                )

    def namespace(self, name: str) -> None:
        """With the default account that the controller-manager would make; pods do not mount its token."""
        account = {"kind": "ServiceAccount", "metadata": {"name": "default"}, "automountServiceAccountToken": False}
        self.apply([{"kind": "Namespace", "metadata": {"name": name}}, account], name)

    # how it comes up

    def _certificates(self) -> None:
        self.authority = pki.Authority(self.sandbox.work / "pki")
        self.serving = self.authority.issue("apiserver", "/CN=kube-apiserver", "IP:127.0.0.1,DNS:localhost")
        self.kubelet_client = self.authority.issue("kubelet-client", "/O=system:masters/CN=kube-apiserver")
        self.admin_pair = self.authority.issue("admin", "/O=system:masters/CN=lab-admin")
        self.signing_key = self.authority.signing_key("accounts")
        self.admin = self.client(pair=self.admin_pair)

    def _start_etcd(self, program: Path) -> None:
        client, peer = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PEER_PORT}"
        flags = {
            "name": "lab",
            "data-dir": self.sandbox.data / "etcd",  # a tmpfs: syncing costs nothing there
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"lab={peer}",
            "log-level": "warn",
            "logger": "zap",
        }
        self.sandbox.spawn("etcd", [str(program), *(f"--{name}={value}" for name, value in flags.items())])

    def _etcd_answers(self) -> bool:
        self.sandbox.connect("127.0.0.1", ETCD_PORT, 1).close()
        return True

    def _etcd(self, path: str, body: Mapping[str, Any]) -> Any:
        """etcd's JSON gateway speaks plain HTTP."""
        with self.sandbox.connect("127.0.0.1", ETCD_PORT, 10) as line:
            text = json.dumps(body).encode()
            line.sendall(f"POST {path} HTTP/1.0\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
            answer = b"".join(iter(lambda: line.recv(65536), b""))
        head, _, rest = answer.partition(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise LabError(f"etcd {path}: {answer[:500]!r}")
        return json.loads(rest)

    def _populate(self) -> None:
        crds = [m for path in sorted((ROOT / "deploy/base/crds").glob("*.yaml")) for m in documents(path)]
        self.apply(crds)
        for name in (NAMESPACE, "default", AGENT_NAMESPACE):
            self.namespace(name)
        self.apply(documents(ROOT / "deploy/base/rbac.yaml"))
        self.sandbox.wait("the CRDs' paths", lambda: all(map(self._served, crds)), 30)

    def _served(self, crd: Mapping[str, Any]) -> bool:
        spec = crd["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        return self.admin.status("GET", path) == 200


def documents(path: Path) -> list[dict[str, Any]]:
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


def etcd_program() -> Path:
    """The cached one, else the installed one, else one made for the labs (some minutes).

    Debian's etcd 3.4 will do but for streaming lists: a watch with sendInitialEvents gets an error, and one without a
    resourceVersion starts 3 s late. For those: python -m tests.labs.binaries etcd
    """
    found = None if binaries.cached("etcd") else shutil.which("etcd")
    return Path(found) if found else binaries.binaries("etcd") / "etcd"


def program_version(program: str | Path) -> str:
    done = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"\d+\.\d+\.\d+\S*", done.stdout)
    return found[0] if found else "unknown"
