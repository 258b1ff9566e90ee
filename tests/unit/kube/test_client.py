"""Calls to the API server: what is sent, and what becomes of each way of failing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from koordlet.kube.access import Access, TokenFile, find_access, in_cluster
from koordlet.kube.backoff import Backoff
from koordlet.kube.client import Api
from koordlet.kube.errors import AccessError, ApiError
from koordlet.kube.limit import RateLimit
from tests.hosts.apiserver import ApiServer, status

NODE = "/api/v1/nodes/a"


class Named(msgspec.Struct):
    metadata: dict[str, str]


def test_an_object_is_created_read_and_changed(server: ApiServer, api: Api) -> None:
    made = api.create("/api/v1/nodes", {"metadata": {"name": "a"}, "spec": {"x": 1}})
    assert made["metadata"]["uid"]
    assert api.get(NODE, type=Named).metadata["name"] == "a"
    api.merge_patch(NODE, {"spec": {"x": None, "y": 2}})
    assert api.get(NODE)["spec"] == {"y": 2}
    changed = api.update(NODE, api.get(NODE) | {"spec": {"z": 3}})
    assert changed["spec"] == {"z": 3}
    with pytest.raises(ApiError, match="NotFound") as caught:
        api.get("/api/v1/nodes/b")
    assert caught.value.status == 404
    sent = [headers for headers in server.headers if headers.get("Content-Type")]
    assert [headers["Content-Type"] for headers in sent] == [
        "application/json",
        "application/merge-patch+json",
        "application/json",
    ]
    assert {headers["User-Agent"] for headers in server.headers} == {"koordlet"}
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer t"}


def test_a_stale_update_is_a_conflict(server: ApiServer, api: Api) -> None:
    old = server.put(NODE, {"spec": {}})
    server.put(NODE, {"spec": {"x": 1}})
    with pytest.raises(ApiError) as caught:
        api.update(NODE, old)
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")


def test_what_the_server_says_is_told(server: ApiServer, api: Api) -> None:
    server.refuse = lambda verb, path: status(429, "TooManyRequests", "a budget\nforbids it", Retry_After="10")
    with pytest.raises(ApiError) as caught:
        api.create("/x", {})
    assert (caught.value.status, caught.value.message, caught.value.retry_after_s) == (429, "a budget forbids it", 10)


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", b"", b"\xff\xfe", b"[1]", b'{"reason": 5}'])
def test_a_middle_mans_answer_is_an_error_too(server: ApiServer, api: Api, body: bytes) -> None:
    server.refuse = lambda verb, path: (502, body, {})
    with pytest.raises(ApiError) as caught:
        api.get("/x")
    assert caught.value.status == 502
    assert caught.value.reason == "Bad Gateway"


@pytest.mark.parametrize("body", [b"", b"{", b'{"metadata": []}', b"[" * 100_000])
def test_an_answer_that_is_not_understood(server: ApiServer, api: Api, body: bytes) -> None:
    server.refuse = lambda verb, path: (200, body, {})
    with pytest.raises(ApiError, match="Malformed"):
        api.get("/x", type=Named)


def test_a_redirect_is_not_followed(server: ApiServer, api: Api) -> None:
    server.refuse = lambda verb, path: (302, b"", {"Location": "/other"})
    with pytest.raises(ApiError) as caught:
        api.get("/x")
    assert caught.value.status == 302
    assert server.count("GET", "/other") == 0


def test_nobody_answers() -> None:
    server = ApiServer()
    api = Api(Access(server.url, lambda anew: {}))
    server.close()
    with pytest.raises(ApiError, match="Unreachable") as caught:
        api.get("/x")
    assert caught.value.status == 0
    api.close()


def test_a_refused_token_is_read_again_once(server: ApiServer) -> None:
    asked: list[bool] = []

    def headers(anew: bool) -> dict[str, str]:
        asked.append(anew)
        return {"Authorization": f"Bearer {'new' if anew else 'old'}"}

    server.put(NODE, {})
    server.refuse = lambda verb, path: (
        status(401, "Unauthorized") if server.headers[-1]["Authorization"] == "Bearer old" else None
    )
    api = Api(Access(server.url, headers))
    assert api.get(NODE)["metadata"]["name"] == "a"
    server.refuse = lambda verb, path: status(401, "Unauthorized")
    with pytest.raises(ApiError, match="Unauthorized"):
        api.get(NODE)
    assert asked == [False, True, False, True]
    api.close()


def test_a_token_file_is_followed(tmp_path: Path) -> None:
    now_s = 1000.0
    path = tmp_path / "token"
    path.write_text("one\n")
    token = TokenFile(path, clock=lambda: now_s)
    assert token.get() == "one"
    path.write_text("two\n")
    assert token.get() == "one"  # looked at a moment ago
    assert token.get(anew=True) == "two"
    path.unlink()
    assert token.get(anew=True) == "two"  # in the middle of a rotation
    path.write_text("three")
    now_s += 61
    assert token.get() == "three"


def test_a_token_that_looks_older_than_the_last_is_taken_up(tmp_path: Path) -> None:
    """The wall clock was set back before the rotation; how often we look goes by another clock."""
    now_s = 1000.0
    path = tmp_path / "token"
    path.write_text("one")
    token = TokenFile(path, clock=lambda: now_s)
    assert token.get() == "one"
    path.write_text("two")
    hour_ago_ns = path.stat().st_mtime_ns - 3600 * 10**9
    os.utime(path, ns=(hour_ago_ns, hour_ago_ns))
    now_s += 61
    assert token.get() == "two"


def test_the_pods_own_account(tmp_path: Path) -> None:
    env = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    with pytest.raises(AccessError, match=r"ca\.crt: not readable"):
        in_cluster(env, tmp_path)
    (tmp_path / "ca.crt").write_text("x")
    (tmp_path / "token").write_text("secret\n")
    found = in_cluster(env, tmp_path)
    assert found.server == "https://[fd00::1]:6443"
    assert found.headers(False) == {"Authorization": "Bearer secret"}
    assert found.ca_file == str(tmp_path / "ca.crt")
    assert found.verify


def test_no_cluster_at_all(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="no cluster found"):
        find_access("", {"HOME": str(tmp_path)})
    with pytest.raises(AccessError, match="missing"):
        find_access(str(tmp_path / "missing"), {})
    (tmp_path / "broken").write_text("{")
    with pytest.raises(AccessError, match="broken"):
        find_access("", {"KUBECONFIG": str(tmp_path / "broken")})


def test_a_kubeconfig_is_read(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\n"
        "contexts: [{name: x, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'https://10.0.0.1:6443', insecure-skip-tls-verify: true}}]\n"
        "users: [{name: u, user: {token: abc}}]\n"
    )
    found = find_access(str(config), {"KUBERNETES_SERVICE_HOST": "10.0.0.2"})
    assert found.server == "https://10.0.0.1:6443"
    assert {name.lower(): value for name, value in found.headers(False).items()} == {"authorization": "Bearer abc"}
    assert not found.verify


def test_waits_double_are_bounded_and_spread() -> None:
    longest = Backoff(1, 8, random=lambda: 1.0)
    assert [longest.next_s() for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    longest.reset()
    assert longest.next_s() == 1
    shortest = Backoff(1, 8, random=lambda: 0.0)
    assert [shortest.next_s() for _ in range(3)] == [0.5, 1, 2]


def test_the_rate_is_kept_to() -> None:
    now_s = 0.0
    limit = RateLimit(2, 3, clock=lambda: now_s)
    assert [limit.take() for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    now_s = 10
    assert limit.take() == 0
    assert RateLimit(0, 1).take() == 0


def test_calls_are_observed(server: ApiServer) -> None:
    seen: list[tuple[str, str, int]] = []
    api = Api(Access(server.url, lambda anew: {}), observed=lambda verb, path, code, s: seen.append((verb, path, code)))
    server.put(NODE, {})
    begun = time.monotonic()
    api.get(NODE)
    with pytest.raises(ApiError):
        api.get("/api/v1/nodes/b")
    assert seen == [("get", NODE, 200), ("get", "/api/v1/nodes/b", 404)]
    assert time.monotonic() > begun
    api.close()
