"""Declared workloads over little cgroup trees, v1 and v2."""

import os
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from koordlet.kernel.host import CgroupVersion
from koordlet.model.pod import PodSet, Resources, Tree
from koordlet.model.qos import KubeQos, Qos
from koordlet.sources.local import LocalSource
from tests.hosts.tree import HostTree

BOOT = "0f3c9d2e-1a2b-4c5d-8e9f-001122334455"


@pytest.fixture(params=list(CgroupVersion))
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> HostTree:
    return node(tmp_path, request.param)


def node(root: Path, version: CgroupVersion) -> HostTree:
    return HostTree(root, version, {"proc": {"sys": {"kernel": {"random": {"boot_id": BOOT + "\n"}}}}, "etc": {}})


def cgroup_dir(tree: HostTree, path: str) -> Path:
    return tree.host.dir("cpu", path)


def group(tree: HostTree, *paths: str) -> None:
    for path in paths:
        tree.cgroup(path)
        if tree.version is CgroupVersion.V1:  # systemd's own hierarchy
            tree.put(f"cgroup/systemd/{path}", {})


def remove(tree: HostTree, path: str) -> None:
    directory = cgroup_dir(tree, path)
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


def declare(tree: HostTree, name: str, *items: dict[str, Any], **more: Any) -> None:
    path = tree.root / "etc" / name
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump({"items": [{"qos": "LS", **item} for item in items], **more}))
    os.replace(fresh, path)


def source(tree: HostTree, **more: Any) -> LocalSource:
    return LocalSource(tree.root / "etc", tree.host, **more)


def shown(found: PodSet) -> dict[str, str]:
    return {pod.name: pod.cgroup for pod in found.pods}


def test_a_declared_cgroup_is_a_pod(tree: HostTree) -> None:
    group(tree, "batch.slice/spark.scope")
    declare(tree, "a.yaml", {"name": "spark", "match": {"cgroup": "/batch.slice/spark.scope"}, "qos": "BE",
                             "priorityClass": "koord-batch", "requests": {"batch-cpu": 4000}})  # fmt: skip
    (pod,) = source(tree).poll(1.0).pods
    inode = cgroup_dir(tree, pod.cgroup).stat().st_ino
    assert pod.uid == str(uuid.uuid5(uuid.UUID(BOOT), f"batch.slice/spark.scope\n{inode}"))
    assert (pod.key, pod.cgroup, pod.tree) == ("local/spark", "batch.slice/spark.scope", Tree.OURS)
    assert (pod.qos, pod.kube_qos, pod.priority_class, pod.active) == (Qos.BE, KubeQos.BESTEFFORT, "koord-batch", True)
    assert [(made.cgroup, made.requests) for made in pod.containers] == [("", Resources(batch_cpu_mcpu=4000))]


@pytest.mark.parametrize(
    ("qos", "kube"),
    [("LSE", "Guaranteed"), ("LSR", "Guaranteed"), ("LS", "Burstable"), ("SYSTEM", "Burstable"), ("BE", "BestEffort")],
)
def test_kubernetes_class_of_each_qos(tmp_path: Path, qos: str, kube: str) -> None:
    tree = node(tmp_path, CgroupVersion.V2)
    group(tree, "a")
    declare(tree, "a.yaml", {"name": "a", "match": {"cgroup": "a"}, "qos": qos})
    assert source(tree).poll(0.0).pods[0].kube_qos == kube


def test_a_glob_has_one_numbered_instance_per_cgroup(tree: HostTree) -> None:
    group(tree, "b.slice/s-1.scope", "b.slice/s-2.scope", "b.slice/other.scope", "c.slice/s-3.scope")
    declare(tree, "a.yaml", {"name": "s", "match": {"cgroup": "/*.slice/s-*.scope"}})
    local = source(tree)
    first = local.poll(0.0)
    assert shown(first) == {"s-0": "b.slice/s-1.scope", "s-1": "b.slice/s-2.scope", "s-2": "c.slice/s-3.scope"}
    remove(tree, "b.slice/s-1.scope")
    second = local.poll(1.0)
    assert shown(second) == {"s-1": "b.slice/s-2.scope", "s-2": "c.slice/s-3.scope"}
    group(tree, "b.slice/s-9.scope")
    assert shown(local.poll(2.0))["s-0"] == "b.slice/s-9.scope"
    assert second.revision == first.revision + 1


def test_nothing_changed_is_the_same_set_with_a_new_time(tree: HostTree) -> None:
    group(tree, "a")
    declare(tree, "a.yaml", {"name": "a", "match": {"cgroup": "a"}})
    local = source(tree)
    first, second = local.poll(1.0), local.poll(2.0)
    assert second.pods is first.pods
    assert (first.revision, second.revision, second.at_s) == (1, 1, 2.0)


def test_a_cgroup_made_again_is_another_instance(tree: HostTree) -> None:
    group(tree, "a")
    declare(tree, "a.yaml", {"name": "a", "match": {"cgroup": "a"}})
    local = source(tree)
    before = local.poll(0.0)
    cgroup_dir(tree, "a").rename(cgroup_dir(tree, "old"))
    group(tree, "a")
    after = local.poll(1.0)
    assert after.pods[0].uid != before.pods[0].uid
    assert after.revision == before.revision + 1


def test_a_running_unit_is_found_and_followed(tree: HostTree) -> None:
    group(tree, "system.slice/nginx.service", "system.slice/batch-1.scope")
    declare(tree, "a.yaml", {"name": "web", "match": {"systemd": "nginx"}},
            {"name": "batch", "match": {"systemd": "batch-*.scope"}})  # fmt: skip
    local = source(tree)
    assert shown(local.poll(0.0)) == {"web": "system.slice/nginx.service", "batch-0": "system.slice/batch-1.scope"}
    remove(tree, "system.slice/nginx.service")
    assert "web" not in shown(local.poll(1.0))
    group(tree, "system.slice/nginx.service", "system.slice/batch-2.scope")
    assert set(shown(local.poll(2.0))) == {"web", "batch-0", "batch-1"}


def test_a_unit_without_cpu_cgroup_is_reported(tmp_path: Path) -> None:
    tree = node(tmp_path, CgroupVersion.V1)
    tree.put("cgroup/systemd/system.slice/nginx.service", {})
    declare(tree, "a.yaml", {"name": "web", "match": {"systemd": "nginx"}})
    local = source(tree)
    for now_s in (0.0, 1.0, 2.0, 3.0):
        assert local.poll(now_s).pods == ()
        assert "CPUAccounting=yes" in local.notes()[0]


def pid_file(tree: HostTree, text: str, cgroup: str) -> dict[str, Any]:
    path = tree.put("run/x.pid", text)
    line = f"0::{cgroup}\n" if tree.version is CgroupVersion.V2 else f"4:cpu,cpuacct:{cgroup}\n"
    tree.put("proc/42/cgroup", line)
    return {"name": "x", "match": {"pidFile": str(path)}}


def test_a_pid_file_leads_to_its_cgroup(tree: HostTree) -> None:
    group(tree, "app/x")
    declare(tree, "a.yaml", pid_file(tree, "42\n", "/app/x"))
    assert shown(source(tree).poll(0.0)) == {"x": "app/x"}


@pytest.mark.parametrize(
    ("text", "cgroup", "note"),
    [
        ("what\n", "/app/x", "no process id"),
        ("42", "/", "root cgroup"),
        ("42", "/user.slice", "other people's work"),
        ("43", "/app/x", ""),
        ("9" * 30, "/", "no process"),
    ],
    ids=["no number", "root cgroup", "shared slice", "process gone", "too long"],
)
def test_pid_files_that_lead_nowhere(tree: HostTree, text: str, cgroup: str, note: str) -> None:
    group(tree, "app/x", "user.slice")
    declare(tree, "a.yaml", pid_file(tree, text, cgroup))
    local = source(tree)
    assert local.poll(0.0).pods == ()
    assert note in " ".join(local.notes())
    assert bool(local.notes()) is bool(note)


PRECEDENCE = [  # most specific first
    {"pidFile": "/run/x.pid"},
    {"systemd": "x.service"},
    {"systemd": "x*.service"},
    {"cgroup": "/app.slice/x.service"},
    {"cgroup": "/app.slice/x*"},
    {"cgroup": "/app.slice/*"},
    {"cgroup": "/*/x.service"},
]


@pytest.mark.parametrize("rank", range(len(PRECEDENCE) - 1))
def test_the_most_specific_match_wins_whatever_the_order(tree: HostTree, rank: int) -> None:
    group(tree, "app.slice/x.service")
    file = pid_file(tree, "42", "/app.slice/x.service")["match"]["pidFile"]
    matches = [dict(PRECEDENCE[at]) for at in (rank + 1, rank)]
    for match in matches:
        if "pidFile" in match:
            match["pidFile"] = file
    declare(tree, "a.yaml", {"name": "less", "match": matches[0]}, {"name": "more", "match": matches[1]})
    local = source(tree)
    (pod,) = local.poll(0.0).pods
    assert pod.containers[0].name == "more"
    assert local.notes() == ()


def test_a_tie_goes_to_the_first_file_and_item_and_is_said(tree: HostTree) -> None:
    group(tree, "x")
    declare(tree, "b.yaml", {"name": "late", "match": {"cgroup": "x"}})
    declare(tree, "a.yaml", {"name": "first", "match": {"cgroup": "x"}}, {"name": "second", "match": {"cgroup": "x"}})
    local = source(tree)
    assert shown(local.poll(0.0)) == {"first": "x"}
    assert len([note for note in local.notes() if "first one holds" in note]) == 2


def test_inside_one_match_only_the_outermost_counts(tree: HostTree) -> None:
    group(tree, "a.slice", "a.slice/a-b.slice", "a.slice/a-b.slice/x.scope")
    declare(tree, "a.yaml", {"name": "a", "match": {"systemd": "a*.slice"}})
    assert shown(source(tree).poll(0.0)) == {"a-0": "a.slice"}


def test_an_inner_cgroup_counts_when_declared_itself(tree: HostTree) -> None:
    group(tree, "a.slice/x.scope")
    declare(tree, "a.yaml", {"name": "out", "match": {"cgroup": "a.slice"}},
            {"name": "in", "match": {"cgroup": "a.slice/x.scope"}})  # fmt: skip
    local = source(tree)
    assert shown(local.poll(0.0)) == {"in": "a.slice/x.scope", "out": "a.slice"}
    (note,) = local.notes()
    assert "counts in both" in note
    assert "keeps the outer one" not in note


def test_online_work_inside_best_effort_is_told_what_that_means(tree: HostTree) -> None:
    group(tree, "batch/web")
    declare(tree, "a.yaml", {"name": "out", "match": {"cgroup": "batch"}, "qos": "BE"},
            {"name": "in", "match": {"cgroup": "batch/web"}, "qos": "LS"})  # fmt: skip
    local = source(tree)
    local.poll(0.0)
    assert "being LS it keeps the outer one from being capped or evicted" in local.notes()[0]


def test_the_kubelets_cgroups_are_never_ours(tree: HostTree) -> None:
    group(tree, "kubepods.slice/kubepods-besteffort.slice")
    declare(tree, "a.yaml", {"name": "k", "match": {"cgroup": "/*/*"}})
    local = source(tree)
    assert local.poll(0.0).pods == ()
    assert "belongs to the kubelet" in local.notes()[0]


def test_what_the_kernel_refuses_to_tell_is_noted(tree: HostTree) -> None:
    group(tree, "a")
    declare(tree, "a.yaml", {"name": "a", "match": {"cgroup": "a"}}, {"name": "b", "match": {"cgroup": "b" * 300}})
    local = source(tree)
    assert set(shown(local.poll(0.0))) == {"a"}
    assert local.notes()[0].endswith("File name too long")


def test_declarations_are_followed_and_a_broken_file_changes_nothing(tree: HostTree) -> None:
    group(tree, "a", "b")
    declare(tree, "a.yaml", {"name": "a", "match": {"cgroup": "a"}})
    declare(tree, "b.yaml", {"name": "b", "match": {"cgroup": "b"}}, defaults={"unmatched": "LS"})
    local = source(tree)
    assert set(shown(local.poll(0.0))) == {"a", "b"}
    assert local.unmatched is Qos.LS
    declare(tree, "a.yaml", {"name": "a", "match": {"user": "bob"}})
    assert set(shown(local.poll(1.0))) == {"a", "b"}
    assert "a.yaml: items[0].match.user: 'bob' is not allowed" in local.errors()[0]
    assert local.failures == 1
    declare(tree, "a.yaml", {"name": "c", "match": {"cgroup": "a"}})
    assert set(shown(local.poll(2.0))) == {"b", "c"}
    assert local.errors() == ()
    (tree.root / "etc/b.yaml").unlink()
    assert set(shown(local.poll(3.0))) == {"b", "c"}
    assert set(shown(local.poll(63.0))) == {"c"}
    assert local.unmatched is Qos.SYSTEM


def test_a_name_is_declared_once(tree: HostTree) -> None:
    group(tree, "a", "b")
    declare(tree, "a.yaml", {"name": "x", "match": {"cgroup": "a"}})
    declare(tree, "b.yaml", {"name": "x", "match": {"cgroup": "b"}}, {"name": "x", "namespace": "n",
            "match": {"cgroup": "b"}})  # fmt: skip
    local = source(tree)
    assert [(pod.key, pod.cgroup) for pod in local.poll(0.0).pods] == [("local/x", "a"), ("n/x", "b")]
    assert "is declared by" in local.errors()[0]


def test_no_declarations_at_all(tree: HostTree) -> None:
    found = LocalSource(tree.root / "none", tree.host).poll(3.0)
    assert (found.pods, found.at_s) == ((), 3.0)
    missing = LocalSource(tree.root / "none", tree.host, required=True)
    missing.poll(0.0)
    assert "no such file or directory" in missing.errors()[0]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> HostTree:
    tree = node(tmp_path_factory.mktemp("node"), CgroupVersion.V2)
    group(tree, "a")
    return tree


@given(data=st.binary(max_size=100))
def test_garbage_never_loses_workloads(shared: HostTree, data: bytes) -> None:
    declare(shared, "a.yaml", {"name": "a", "match": {"cgroup": "a"}})
    local = source(shared)
    local.poll(0.0)
    fresh = shared.root / "etc/a.new"
    fresh.write_bytes(data)
    os.replace(fresh, shared.root / "etc/a.yaml")
    assert set(shown(local.poll(1.0))) == {"a"} or not local.errors()
