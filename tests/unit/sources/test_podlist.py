import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.kernel.kubepods import Driver, Kubepods
from koordlet.model.pod import Resources
from koordlet.model.qos import KubeQos, Qos
from koordlet.sources.podlist import PodDecoder, PodList, PodListError, decode_pods
from tests.hosts.cases import case_json, case_text

SYSTEMD = Kubepods(Driver.SYSTEMD)
UID = "3f0c2a7e-91d4-4b6a-8e57-6c1d0f2ab934"


def decode(*items: dict[str, Any], kubepods: Kubepods = SYSTEMD) -> PodList:
    return decode_pods(json.dumps({"kind": "PodList", "items": list(items)}).encode(), kubepods)


def item(name: str = "p", uid: str = UID, **parts: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "uid": uid, **parts.pop("metadata", {})}
    return {"metadata": metadata, "status": {"phase": "Running", "qosClass": "Burstable"}, **parts}


def annotated(text: str, **parts: Any) -> dict[str, Any]:
    return item(metadata={"annotations": {"scheduling.koordinator.sh/resource-status": text}}, **parts)


def test_classes_of_labelled_and_unlabelled_pods() -> None:
    found = decode_pods(case_text("priority-qos-defaults", "pods.json").encode(), SYSTEMD)
    assert found.errors == ()
    assert {
        pod.name: {"priority_class": pod.priority_class, "qos_raw": pod.qos or "", "qos_default": pod.default_qos}
        for pod in found.pods
    } == case_json("priority-qos-defaults")


def test_a_static_pod_is_known_by_its_config_hash() -> None:
    expected = case_json("static-pod-config-hash-uid")
    (pod,) = decode_pods(case_text("static-pod-config-hash-uid", "kubelet_pods.json").encode(), SYSTEMD).pods
    assert (pod.uid, pod.cgroup) == (expected["key"], expected["cgroup"])
    assert pod.key == "kube-system/etcd-node-a"
    assert pod.containers[0].requests == Resources(cpu_mcpu=100, memory_bytes=100 * 2**20)
    (mirror,) = decode(case_json("static-pod-config-hash-uid", "api_mirror.json")).pods
    assert (mirror.uid, mirror.cgroup) == (expected["key_from_api_object"], expected["cgroup"])
    assert (pod.static, mirror.static) == (True, True)


@pytest.mark.parametrize(("source", "static"), [("file", True), ("http", True), ("api", False), (None, False)])
def test_where_the_kubelet_has_a_pod_from(source: str | None, static: bool) -> None:
    annotations = {} if source is None else {"kubernetes.io/config.source": source}
    (pod,) = decode(item(metadata={"annotations": annotations})).pods
    assert pod.static is static


def test_a_container_without_id_is_skipped_silently() -> None:
    expected = case_json("container-id-empty")
    found = decode_pods(case_text("container-id-empty", "pods.json").encode(), SYSTEMD)
    assert len(found.errors) == expected["errors"]
    (pod,) = found.pods
    managed = {made.name: made.cgroup.rpartition("/")[2] for made in pod.containers if made.cgroup}
    assert managed == expected["managed"]
    assert [made.name for made in pod.containers if not made.cgroup] == expected["skipped"]
    assert [made.running for made in pod.containers] == [True, False]
    assert pod.cgroup


def test_a_malformed_resource_status_stays_with_its_pod() -> None:
    pods = case_json("malformed-resource-status", "pods.json")
    items = [{"metadata": {"uid": f"u-{pod['name']}", "namespace": "ns", **pod}} for pod in pods]
    found = decode(*items)
    by_name = {pod.name: pod for pod in found.pods}
    assert (by_name["bad"].cpuset, by_name["bad"].cpuset_error != "") == (None, True)
    assert str(by_name["good"].cpuset) == case_json("malformed-resource-status")["good"]["cpuset"]
    assert (by_name["plain"].cpuset, by_name["plain"].cpuset_error) == (None, "")
    assert len(found.errors) == 1
    assert found.errors[0].startswith("pod ns/bad: ")


def test_unlabelled_best_effort_is_not_labelled_be() -> None:
    scenario = case_json("best-effort-without-label", "scenario.json")
    items = [
        {"metadata": {"name": pod["name"], "uid": pod["name"], "labels": pod["labels"]},
         "status": {"qosClass": pod["k8s_qos"]}}
        for pod in scenario["pods"]
    ]  # fmt: skip
    found = decode(*items).pods
    assert {pod.name for pod in found if pod.qos is Qos.BE} == set(case_json("best-effort-without-label")["victims"])
    assert all(pod.is_be for pod in found)


def test_container_directories() -> None:
    rows = {(row["container_id"], row["driver"]): row for row in case_json("container-dir-names")["dirs"]}
    for row in case_json("container-dir-names", "containers.json"):
        pod = item(spec={"containers": [{"name": "c"}]})
        pod["status"]["containerStatuses"] = [{"name": "c", "containerID": row["container_id"]}]
        found = decode(pod, kubepods=Kubepods(Driver(row["driver"])))
        directory = found.pods[0].containers[0].cgroup.rpartition("/")[2]
        known = rows.get((row["container_id"], row["driver"]))
        assert directory == (known["dir"] if known else "")
        assert len(found.errors) == (known is None)


CPUSETS = [
    ('{"cpuset":"2-5","numaNodeResources":[{"node":0,"resources":{"cpu":"4"}}]}', "2-5"),
    ('{"CPUSet":"2-5"}', "2-5"),
    ('{"numaNodeResources":[{"node":0,"resources":{"batch-cpu":"4k"}}]}', None),
    ('{"cpuset":""}', None),
    ('{"cpuset":null}', None),
    ("null", None),
    ("{}", None),
]


@pytest.mark.parametrize(("text", "cpus"), CPUSETS, ids=[row[0] for row in CPUSETS])
def test_cpusets(text: str, cpus: str | None) -> None:
    found = decode(annotated(text))
    assert found.errors == ()
    assert (str(found.pods[0].cpuset) if found.pods[0].cpuset else None) == cpus


BAD_CPUSETS = [
    "", "{", '{"cpuset":"0-3"', '{"cpuset":"a-b"}', '{"cpuset":" 1,1 "}', '{"cpuset":3}', '{"cpuset":["1"]}',
    '{"cpuset":"3-1"}', "[]", '"0-3"', '{"cpuset":"0-3"}x', '{"cpuset":"1","numaNodeResources":{}}',
    '{"cpuset":"1","numaNodeResources":[{"node":1.5}]}', '{"cpuset":"' + "1," * 40_000 + '1"}', "[" * 1000,
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_CPUSETS, ids=[text[:30] for text in BAD_CPUSETS])
def test_bad_cpusets_pin_nothing(text: str) -> None:
    found = decode(annotated(text))
    assert found.pods[0].cpuset is None
    assert found.pods[0].cpuset_error
    assert len(found.errors) == 1
    assert len(found.errors[0]) < 500


def test_a_finished_pod_releases_its_cpus() -> None:
    found = decode(annotated('{"cpuset":"2-5"}', status={"phase": "Succeeded", "qosClass": "Guaranteed"}))
    assert found.pods[0].cpuset is None
    assert not found.pods[0].active


def box(requests: dict[str, Any] | None = None, limits: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": requests, "limits": limits}}


FULL = {"cpu": "1", "memory": "1Gi"}
QOS_OF_SPECS = [
    ([box()], [], KubeQos.BESTEFFORT),
    ([], [], KubeQos.BESTEFFORT),
    ([box({"kubernetes.io/batch-cpu": "1k"})], [], KubeQos.BESTEFFORT),
    ([box({"cpu": "0"})], [], KubeQos.BESTEFFORT),
    ([box(FULL, FULL)], [], KubeQos.GUARANTEED),
    ([box(None, FULL)], [], KubeQos.GUARANTEED),
    ([box({"cpu": "1000m", "memory": "1024Mi"}, FULL)], [], KubeQos.GUARANTEED),
    ([box(FULL, FULL), box()], [], KubeQos.BURSTABLE),
    ([box(FULL, FULL)], [box({"cpu": "1"})], KubeQos.BURSTABLE),
    ([box({"cpu": "1"}, {"cpu": "1"})], [], KubeQos.BURSTABLE),
]


@pytest.mark.parametrize(("containers", "init", "want"), QOS_OF_SPECS)
def test_kubernetes_qos_from_the_spec(containers: list[Any], init: list[Any], want: KubeQos) -> None:
    found = decode(item(spec={"containers": containers, "initContainers": init}, status={}))
    assert found.pods[0].kube_qos is want


def test_requests_and_limits() -> None:
    requests = {"cpu": "500m", "memory": "1Gi", "kubernetes.io/batch-cpu": "15k", "kubernetes.io/mid-memory": 5}
    (pod,) = decode(item(spec={"priority": 5500, "containers": [box(requests, {"cpu": 2, "gpu": "x"})]})).pods
    assert pod.containers[0].requests == Resources(500, 2**30, batch_cpu_mcpu=15_000, mid_memory_bytes=5)
    assert pod.containers[0].limits == Resources(cpu_mcpu=2000)
    assert (pod.priority, pod.batch_request_mcpu) == (5500, 15_000)


@pytest.mark.parametrize("text", ["lots", "", "1e999", "1" * 40])
def test_a_bad_quantity_is_absent_and_reported(text: str) -> None:
    found = decode(item(spec={"containers": [box({"cpu": text, "memory": "1Gi"})]}))
    assert found.pods[0].containers[0].requests == Resources(memory_bytes=2**30)
    assert "requests.cpu" in found.errors[0]


def test_sidecars_count_and_plain_init_containers_do_not() -> None:
    init = [{"name": "side", "restartPolicy": "Always"}, {"name": "once"}]
    pod = item(spec={"initContainers": init, "containers": [{"name": "main"}]})
    pod["status"]["initContainerStatuses"] = [
        {"name": "side", "containerID": "containerd://ab", "state": {"running": {"startedAt": "x"}}}
    ]
    (found,) = decode(pod).pods
    assert [(made.name, made.running) for made in found.containers] == [("side", True), ("main", False)]
    assert found.containers[0].cgroup.endswith("/cri-containerd-ab.scope")


@pytest.mark.parametrize("uid", ["", "../etc", "a/b", "x" * 200])
def test_a_pod_whose_uid_is_no_name_is_left_out(uid: str) -> None:
    found = decode(item(uid=uid), item(name="good"))
    assert [pod.name for pod in found.pods] == ["good"]
    assert "left out" in found.errors[0]


def test_of_two_pods_with_one_uid_the_first_stays() -> None:
    found = decode(item(name="a"), item(name="b"))
    assert [pod.name for pod in found.pods] == ["a"]
    assert "belongs to ns/a" in found.errors[0]


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b'{"items":3}', b'{"items":[{}]}', b'{"items":[null]}',
                                  b'{"items":[]}x', b"\xff", b'{"items":' + b"[" * 5000, b'{"message":"Unauthorized"}',
                                  b'{"items":[{"metadata":{"name":5}}]}'])  # fmt: skip
def test_what_is_no_pod_list_is_refused_as_a_whole(data: bytes) -> None:
    with pytest.raises(PodListError, match="not a PodList"):
        decode_pods(data, SYSTEMD)


def test_an_empty_list_is_a_pod_list() -> None:
    assert decode_pods(b'{"items":null}', SYSTEMD) == PodList(())


KEYS = st.sampled_from(
    [
        *("items", "metadata", "name", "uid", "labels", "annotations", "spec", "status", "containers"),
        *("containerStatuses", "containerID", "resources", "requests", "cpu", "qosClass", "phase", "priority"),
        "scheduling.koordinator.sh/resource-status",
    ]
)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=4),
    max_leaves=25,
)


@given(st.binary(max_size=100) | TREES.map(lambda tree: json.dumps({"items": [tree]}).encode()))
def test_any_answer_is_a_pod_list_or_refused(data: bytes) -> None:
    with contextlib.suppress(PodListError):
        assert isinstance(decode_pods(data, SYSTEMD), PodList)


@given(st.text(max_size=60) | TREES.map(json.dumps))
def test_any_annotation_leaves_the_pod_usable(text: str) -> None:
    (pod,) = decode(annotated(text)).pods
    assert pod.uid == UID
    assert pod.cpuset is None or pod.cpuset_error == ""


def test_control_characters_of_a_name_reach_no_terminal() -> None:
    found = decode(item(name="\x1b[31mred\nline"), item(name="good", uid="u2"))
    assert [pod.name for pod in found.pods] == ["good"]
    assert found.errors == (r"pod 'ns/\x1b[31mred\nline': left out: its name holds control characters",)


def test_a_pod_whose_text_is_as_it_was_is_the_same_object() -> None:
    def body(*pods: dict[str, Any]) -> bytes:
        return json.dumps({"items": pods}).encode()

    one, two = ({"metadata": {"name": name, "uid": name}} for name in ("one", "two"))
    odd = {"metadata": {"name": "odd", "uid": "../odd"}}
    decoder = PodDecoder(Kubepods(Driver.SYSTEMD))
    first = decoder.decode(body(one, two, odd))
    second = decoder.decode(body(odd, two | {"status": {"phase": "Failed"}}, one))  # a kubelet's order is random
    assert [pod.name for pod in second.pods] == ["one", "two"]
    assert second.pods[0] is first.pods[0]
    assert (first.pods[1].phase, second.pods[1].phase) == ("Pending", "Failed")
    assert second.errors == first.errors != ()
    with pytest.raises(PodListError):
        decoder.decode(body(one, {"metadata": []}))
    assert decoder.decode(body(one)).pods[0] is first.pods[0]


def test_claims_of_volumes_whose_io_is_limited() -> None:
    blocks = [{"name": name, "type": "podvolume", "ioCfg": {"readBPS": 1}} for name in ("data", "tmp", "inline")]
    annotations = {"koordinator.sh/blkioQOS": json.dumps({"blocks": blocks})}
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-p-0"}},
        {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "inline", "csi": {"driver": "x"}},
        {"name": "other", "persistentVolumeClaim": {"claimName": "not-limited"}},
    ]
    (pod,) = decode(item(metadata={"annotations": annotations}, spec={"volumes": volumes})).pods
    assert pod.claims == (("data", "data-p-0"), ("tmp", "p-tmp"))
    (pod,) = decode(item(spec={"volumes": volumes})).pods
    assert pod.claims == ()
