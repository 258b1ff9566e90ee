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
        ("urllib3", "--pods with a URL"),
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
