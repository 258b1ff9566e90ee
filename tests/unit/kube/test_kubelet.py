"""Where the kubelet is found, and what is said when it refuses."""

from __future__ import annotations

import pytest

from koordlet.kube.access import Access
from koordlet.kube.errors import ApiError
from koordlet.kube.kubelet import PODS, Kubelet
from koordlet.kube.objects import Address, Endpoint, Endpoints, NodeObject, NodeStatus
from tests.hosts.apiserver import ApiServer, status

ACCESS = Access("https://10.0.0.1:6443", lambda anew: {"Authorization": "Bearer t"})


def node(*addresses: tuple[str, str], port: int = 10250) -> NodeObject:
    return NodeObject(
        status=NodeStatus(
            addresses=[Address(kind, address) for kind, address in addresses],
            daemon_endpoints=Endpoints(Endpoint(port)) if port else None,
        )
    )


BOTH = (("Hostname", "node-a"), ("InternalIP", "192.0.2.1"), ("ExternalIP", "fd00::2"))


@pytest.mark.parametrize(
    ("kind", "port", "url"),
    [
        ("InternalIP", 10250, "https://192.0.2.1:10250"),
        ("Hostname", 10250, "https://node-a:10250"),
        ("ExternalIP", 4711, "https://[fd00::2]:4711"),
        ("NoSuchType", 0, "https://192.0.2.1:10250"),
    ],
)
def test_the_address_is_the_nodes(kind: str, port: int, url: str) -> None:
    assert Kubelet(ACCESS, lambda: node(*BOTH, port=port), address_type=kind)._url() == url


def test_without_a_node_or_address_it_is_not_known() -> None:
    with pytest.raises(ApiError, match="Node object"):
        Kubelet(ACCESS, lambda: None).read(PODS)
    with pytest.raises(ApiError, match="no address of type ExternalDNS"):
        Kubelet(ACCESS, lambda: node(*BOTH), address_type="ExternalDNS").read(PODS)


def test_the_read_only_port_is_asked_without_credentials_and_without_a_node(server: ApiServer) -> None:
    server.refuse = lambda verb, path: (200, b'{"items":[]}', {})
    kubelet = Kubelet(ACCESS, lambda: None, plain=server.url)
    assert kubelet.read(PODS) == b'{"items":[]}'
    assert "Authorization" not in server.headers[0]
    kubelet.close()


def test_a_refusal_names_the_rule_that_old_kubelets_want(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    kubelet = Kubelet(ACCESS, lambda: None)
    monkeypatch.setattr(kubelet, "_url", lambda: server.url)
    server.refuse = lambda verb, path: status(403, "Forbidden", "no")
    with pytest.raises(ApiError, match=r"nodes/proxy") as caught:
        kubelet.read(PODS)
    assert caught.value.status == 403
    server.refuse = lambda verb, path: (200, b"{}", {})
    assert kubelet.read(PODS) == b"{}"
    kubelet.close()
