"""Who an audit record is about: recorded are {"type":"pod","namespace","name"} and {"container"}."""

from __future__ import annotations

import pytest

from koordlet.model.audit import AuditRecord
from koordlet.model.pod import Container, Pod, Tree
from koordlet.model.qos import KubeQos
from koordlet.report.auditnames import NamedAudit


def pod(name: str, tree: Tree = Tree.KUBELET) -> Pod:
    main = Container("main", id=f"containerd://{name}", cgroup=f"kubepods/{name}/main")
    waiting = Container("waiting")
    return Pod(name, "default", name, f"kubepods/{name}", KubeQos.BURSTABLE, tree, containers=(main, waiting))


@pytest.mark.parametrize(
    ("target", "kind", "told"),
    [
        ("kubepods/b", "group", ("pod", "default", "b", "")),
        ("kubepods/b/main", "group", ("", "default", "b", "containerd://b")),
        ("kubepods/db", "group", ("group", "", "kubepods/db", "")),
        ("kubepods", "group", ("group", "", "kubepods", "")),
        ("kubepods/b", "node", ("node", "", "kubepods/b", "")),
    ],
    ids=["pod", "container", "declared", "class", "node"],
)
def test_names(target: str, kind: str, told: tuple[str, ...]) -> None:
    kept: list[AuditRecord] = []
    known = (pod("b"), pod("db", Tree.OURS))
    NamedAudit(kept.append, lambda: known)(AuditRecord(3, kind, "r", "m", name=target, target=target))
    (found,) = kept
    assert (found.kind, found.namespace, found.name, found.container) == told
    assert (found.reason, found.message, found.target) == ("r", "m", target)


def test_a_pod_that_came_since_is_known() -> None:
    kept: list[AuditRecord] = []
    sets: list[tuple[Pod, ...]] = [()]
    sink = NamedAudit(kept.append, lambda: sets[-1])
    for _ in range(2):
        sink(AuditRecord(3, "group", "r", "m", name="kubepods/b", target="kubepods/b"))
        sets.append((pod("b"),))
    assert [record.kind for record in kept] == ["group", "pod"]
