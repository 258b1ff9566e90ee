"""What the agent does not load: memory and start time that nobody would get anything for.

asyncio and ssl come with structlog and prometheus_client, email with the standard library's http.server; they stay.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys
from koordlet.cli.run import load_agent
load_agent()
print(json.dumps(sorted(sys.modules)))
"""


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("module", "wanted_by"),
    [
        ("rich", "the commands that people look at"),
        ("yaml", "files in YAML"),
        ("urllib3", "--pods with a URL, and a cluster"),
        ("kubernetes", "a cluster"),
        ("koordlet.wiring.cluster", "a cluster"),
        ("grpc", "the door of koord-runtime-proxy"),
        ("google.protobuf", "a connection to a runtime"),
        ("multiprocessing", "nobody"),
        ("unittest", "nobody"),
        ("koordlet.load", "demo and benches"),
        ("koordlet.demo", "the demo"),
        ("koordlet.cli.top", "another command"),
    ],
)
def test_the_agent_does_not_load(loaded: set[str], module: str, wanted_by: str) -> None:
    assert module not in loaded, f"only wanted by {wanted_by}"


def test_rich_can_be_imported_afterwards() -> None:
    script = "from koordlet.cli.run import load_agent; load_agent(); import rich.console"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


MEMBER = """
import json, sys
from pathlib import Path
from koordlet.cli.run import load_agent
load_agent()
import koordlet.wiring.cluster
from koordlet.kube.access import in_cluster
from koordlet.kube.client import Api
from koordlet.kube.errors import ApiError
account = Path(sys.argv[1])
api = Api(in_cluster({"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "9"}, account), connect_s=1)
try:
    api.merge_patch("/x", {})
except ApiError as error:
    print(json.dumps(sorted(sys.modules)))
"""


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What is loaded in a cluster, the first call included."""
    folder = tmp_path_factory.mktemp("account")
    authority = folder / "ca.crt"
    words = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x"]
    subprocess.run(
        ["openssl", "req", *words, "-keyout", "/dev/null", "-out", str(authority)], capture_output=True, check=True
    )
    (folder / "token").write_text("t")
    words = [sys.executable, "-c", MEMBER, str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "module",
    ["pydantic", "requests", "oauthlib", "aiohttp", "kubernetes.client.models", "kubernetes.client.api_client"],
)
def test_a_member_of_a_cluster_does_not_load(member: set[str], module: str) -> None:
    assert "kubernetes.client.rest" in member
    assert module not in member


def test_the_whole_client_can_be_imported_afterwards() -> None:
    script = (
        "from koordlet.kube.lazy import load; load(); import kubernetes; from kubernetes import dynamic, config;"
        "assert kubernetes.config.load_incluster_config and dynamic.DynamicClient and kubernetes.client.V1Pod"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
