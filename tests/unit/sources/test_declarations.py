import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.config.errors import PolicyError
from koordlet.model.pod import Resources
from koordlet.model.qos import Qos
from koordlet.sources.declarations import Declarations, Match, Rank, load_declarations

EXAMPLE = Path(__file__).parents[3] / "systemd/examples/local.d/web-and-batch.yaml"
SPEC = """\
kind: LocalWorkloadList
items:
- name: web
  match: {systemd: "nginx.service"}
  qos: LSR
  priorityClass: koord-prod
  priority: 9500
  requests: {cpu: "4", memory: 8Gi}
  limits: {cpu: "4", memory: 10Gi}
  cpu: {bindPolicy: FullPCPUs, required: false, exclusive: PCPULevel, numaPolicy: SingleNUMANode}
  slo: {metric: p99_ms, objective: 50, source: "file:/run/web.slo"}
- name: spark
  match: {cgroup: "/batch.slice/spark-*.scope"}
  qos: BE
  priorityClass: koord-batch
  requests: {batch-cpu: 4000, batch-memory: 8Gi}
  evict: {order: [freeze, stop-unit, kill], graceSeconds: 20, hook: "/usr/local/bin/ckpt %p"}
  contract: {restartable: true, checkpointSeconds: 300}
defaults: {unmatched: SYSTEM}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("local.d")


def load(folder: Path, document: object, *, strict: bool = False) -> Declarations:
    path = folder / "a.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return load_declarations(path, strict=strict)


def one(folder: Path, **parts: Any) -> Declarations:
    return load(folder, {"items": [{"name": "a", "qos": "LS", "match": {"cgroup": "/a"}, **parts}]})


def test_a_full_declaration(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SPEC)
    found = load_declarations(tmp_path / "a.yaml")
    web, spark = found.items
    assert (web.key, web.qos, web.priority_class, web.priority) == ("local/web", Qos.LSR, "koord-prod", 9500)
    assert (web.requests, web.limits.memory_bytes) == (Resources(4000, 8 * 2**30), 10 * 2**30)
    assert spark.match == Match(Rank.CGROUP_GLOB, "batch.slice/spark-*.scope")
    assert spark.requests == Resources(batch_cpu_mcpu=4000, batch_memory_bytes=8 * 2**30)
    assert found.unmatched is Qos.SYSTEM
    assert [warning.rpartition(": ")[2] for warning in found.warnings] == ["accepted, but not used yet"] * 3


def test_the_example_loads_without_warnings() -> None:
    found = load_declarations(EXAMPLE, strict=True)
    assert found.warnings == ()
    assert [item.name for item in found.items] == ["web", "db", "cache", "batch"]


MATCHES = [
    ({"cgroup": "/app.slice/web-*"}, Match(Rank.CGROUP_GLOB, "app.slice/web-*")),
    ({"cgroup": "a/b/"}, Match(Rank.CGROUP, "a/b")),
    ({"systemd": "nginx"}, Match(Rank.UNIT, "nginx")),
    ({"systemd": "b-?.scope"}, Match(Rank.UNIT_GLOB, "b-?.scope")),
    ({"pidFile": "/run/x.pid"}, Match(Rank.PID_FILE, "/run/x.pid")),
]


@pytest.mark.parametrize(("match", "want"), MATCHES, ids=[str(row[0]) for row in MATCHES])
def test_matches(folder: Path, match: dict[str, str], want: Match) -> None:
    assert one(folder, match=match).items[0].match == want


REFUSED = [
    ({"match": {"container": {"runtime": "containerd"}}}, "items[0].match.container", "not supported yet"),
    ({"match": {"user": "svc-web"}}, "items[0].match.user", "not supported yet"),
    ({"match": {}}, "items[0].match", "exactly one of"),
    ({"match": {"cgroup": "/a", "systemd": "b"}}, "items[0].match", "exactly one of"),
    ({"match": {"cgroup": "/"}}, "items[0].match.cgroup", "below the root"),
    ({"match": {"cgroup": "/a/../b"}}, "items[0].match.cgroup", "below the root"),
    ({"match": {"cgroup": "/a/**"}}, "items[0].match.cgroup", "below the root"),
    ({"match": {"cgroup": ""}}, "items[0].match.cgroup", "not empty"),
    ({"match": {"systemd": "a/b"}}, "items[0].match.systemd", "a unit name"),
    ({"match": {"pidFile": "x.pid"}}, "items[0].match.pidFile", "an absolute path"),
    ({"qos": "be"}, "items[0].qos", "LSE or LSR"),
    ({"qos": ""}, "items[0].qos", "required"),
    ({"priorityClass": "gold"}, "items[0].priorityClass", "koord-prod"),
    ({"name": "a/b"}, "items[0].name", "letters"),
    ({"name": "a\n"}, "items[0].name", "letters"),
    ({"requests": {"cpu": "-1"}}, "items[0].requests.cpu", "not negative"),
    ({"requests": {"cpu": True}}, "items[0].requests.cpu", "a quantity"),
]


@pytest.mark.parametrize(("parts", "key", "allowed"), REFUSED, ids=[f"{row[1]} {row[2]}" for row in REFUSED])
def test_refused_with_key_and_allowed_values(folder: Path, parts: dict[str, Any], key: str, allowed: str) -> None:
    with pytest.raises(PolicyError) as caught:
        one(folder, **parts)
    assert caught.value.key == key
    assert allowed in caught.value.allowed


@pytest.mark.parametrize(
    ("document", "key"),
    [
        ({"kind": "PodList"}, "kind"),
        ({"items": {}}, "items"),
        ({"items": [1]}, "items[0]"),
        ({"items": [{"name": "a", "qos": "LS", "match": {"cgroup": "/a"}}] * 2}, "items[1].name"),
        ({"items": [{}] * 1001}, "items"),
        ({"defaults": {"unmatched": "LSR"}}, "defaults.unmatched"),
        ([], ""),
    ],
)
def test_refused_documents(folder: Path, document: object, key: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load(folder, document)
    assert caught.value.key == key


def test_unknown_keys_are_warnings_and_errors_where_strict(folder: Path) -> None:
    document = {"items": [{"name": "a", "qos": "LS", "match": {"cgroup": "/a"}, "request": {}}]}
    assert "did you mean requests" in load(folder, document).warnings[0]
    with pytest.raises(PolicyError) as caught:
        load(folder, document, strict=True)
    assert caught.value.key == "items[0].request"


KEYS = st.sampled_from(["items", "name", "match", "cgroup", "systemd", "pidFile", "qos", "requests", "cpu", "defaults"])
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["LS", "/a*", "BE"]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=4),
    max_leaves=25,
)


@given(document=TREES.map(json.dumps) | st.text(max_size=60).filter(lambda text: "\ud800" not in text))
def test_any_document_is_a_list_or_refused(folder: Path, document: str) -> None:
    with contextlib.suppress(PolicyError):
        assert isinstance(load(folder, document), Declarations)
