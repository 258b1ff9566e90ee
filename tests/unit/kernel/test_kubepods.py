from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.kubepods import Driver, Kubepods, detect_driver, host_app_dir
from koordlet.model.qos import KubeQos
from tests.hosts.cases import case_json
from tests.hosts.tree import HostTree

UID = "0f3c9d2e-1a2b-4c5d-8e9f-001122334455"
SYSTEMD = Kubepods(Driver.SYSTEMD)
CGROUPFS = Kubepods(Driver.CGROUPFS)

POD_DIRS = [  # W-1, W-2
    (
        SYSTEMD,
        KubeQos.BURSTABLE,
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f3c9d2e_1a2b_4c5d_8e9f_001122334455.slice",
    ),
    (SYSTEMD, KubeQos.GUARANTEED, "kubepods.slice/kubepods-pod0f3c9d2e_1a2b_4c5d_8e9f_001122334455.slice"),
    (CGROUPFS, KubeQos.BESTEFFORT, "kubepods/besteffort/pod0f3c9d2e-1a2b-4c5d-8e9f-001122334455"),
    (CGROUPFS, KubeQos.GUARANTEED, "kubepods/pod0f3c9d2e-1a2b-4c5d-8e9f-001122334455"),
]


@pytest.mark.parametrize(("kubepods", "kube_qos", "path"), POD_DIRS)
def test_pod_dir(kubepods: Kubepods, kube_qos: KubeQos, path: str) -> None:
    assert kubepods.pod_dir(UID, kube_qos) == path
    assert kubepods.parse_pod(path) == kubepods.parse_pod(f"/{path}/") == (UID, kube_qos)


@pytest.mark.parametrize("layout", range(6))
def test_driver_detection(tmp_path: Path, layout: int) -> None:
    given_, expected = case_json("cgroup-driver-detection", "layouts.json"), case_json("cgroup-driver-detection")
    tree = HostTree(tmp_path, CgroupVersion(given_[layout]["version"]))
    for directory in given_[layout]["dirs"]:
        tree.put(f"cgroup/{directory}", {})
    assert detect_driver(tree.host) == expected[layout]


def test_driver_detection_below_a_kubelet_root(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, CgroupVersion.V2)
    assert detect_driver(tree.host, "/kubelet") is None
    tree.put("cgroup/kubelet/kubepods", {})
    assert detect_driver(tree.host, "/kubelet") is Driver.CGROUPFS
    tree.put("cgroup/kubelet.slice/kubelet-kubepods.slice", {})
    assert detect_driver(tree.host, "/kubelet") is Driver.SYSTEMD
    assert detect_driver(tree.host) is None


@pytest.mark.parametrize("driver", list(Driver))
def test_kind_cgroup_root(driver: Driver) -> None:
    case, expected = case_json("kubelet-cgroup-root-kind", "input.json"), case_json("kubelet-cgroup-root-kind")[driver]
    kubepods = Kubepods(driver, case["cgroupRoot"])
    first, second = case["pods"]
    pod_dir = kubepods.pod_dir(first["uid"], KubeQos(first["qos"]))
    container_dir = kubepods.container_dir(pod_dir, first["container"])
    assert kubepods.qos_dir(KubeQos.BURSTABLE) == expected["burstable_dir"]
    assert container_dir == expected["container"]
    assert kubepods.pod_dir(second["uid"], KubeQos(second["qos"])) == expected["guaranteed_pod"]
    assert kubepods.parse_pod(pod_dir) == (first["uid"], KubeQos.BURSTABLE)
    assert kubepods.parse_pod(expected["guaranteed_pod"]) == (second["uid"], KubeQos.GUARANTEED)
    assert kubepods.parse_container(container_dir.rpartition("/")[2]) == first["container"].partition("://")[2]


def test_systemd_escapes_a_dash_inside_one_level() -> None:
    assert Kubepods(Driver.SYSTEMD, "/my-node/k").root() == "my_node.slice/my_node-k.slice/my_node-k-kubepods.slice"
    assert Kubepods(Driver.CGROUPFS, "/my-node/k").root() == "my-node/k/kubepods"


def test_a_kubelet_root_that_climbs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\.\."):
        Kubepods(Driver.CGROUPFS, "/a/../..").root()


def test_static_pod_directory_is_named_after_the_config_hash() -> None:
    pod = case_json("static-pod-config-hash-uid", "kubelet_pods.json")["items"][0]
    path = SYSTEMD.pod_dir(pod["metadata"]["uid"], KubeQos(pod["status"]["qosClass"]))
    expected = case_json("static-pod-config-hash-uid")
    assert path == expected["cgroup"]
    assert SYSTEMD.parse_pod(path) == (expected["key"], KubeQos.BURSTABLE)


def test_container_directories_of_every_runtime() -> None:
    expected = case_json("container-dir-names")
    for row in expected["dirs"]:
        kubepods = Kubepods(Driver(row["driver"]))
        assert kubepods.container_dir("p", row["container_id"]) == f"p/{row['dir']}"
        assert kubepods.parse_container(row["dir"]) == row["container_id"].partition("://")[2]
    for container_id in expected["errors"]:
        with pytest.raises(ValueError, match="container id"):
            SYSTEMD.container_dir("p", container_id)


def test_a_container_without_id_is_an_error_of_that_container_only() -> None:
    pod = case_json("container-id-empty", "pods.json")["items"][0]
    expected = case_json("container-id-empty")
    managed, skipped = {}, []
    for status in pod["status"]["containerStatuses"]:
        try:
            managed[status["name"]] = SYSTEMD.container_dir("p", status["containerID"]).removeprefix("p/")
        except ValueError:
            skipped.append(status["name"])
    assert (managed, skipped) == (expected["managed"], expected["skipped"])


@pytest.mark.parametrize(
    ("kubepods", "basename", "bare"),
    [  # W-3
        (SYSTEMD, "crio-ab12.scope", "ab12"),
        (SYSTEMD, "crio-ab12", "ab12"),
        (SYSTEMD, "pouch-ab12.scope", "ab12"),
        (SYSTEMD, "docker-ab12.scope", "ab12"),
        (SYSTEMD, "cri-containerd-ab12.scope", "ab12"),
        (SYSTEMD, "crio-conmon-ab12.scope", None),
        (SYSTEMD, "ab12", None),
        (SYSTEMD, "foo-ab12.scope", None),
        (SYSTEMD, "kubepods-pod1_2.slice", None),
        (CGROUPFS, "ab12", "ab12"),
        (CGROUPFS, "crio-ab12", "ab12"),
        (CGROUPFS, "crio-conmon-ab12", None),
        (CGROUPFS, "", None),
    ],
)
def test_parse_container(kubepods: Kubepods, basename: str, bare: str | None) -> None:
    assert kubepods.parse_container(basename) == bare


@pytest.mark.parametrize(
    ("kubepods", "path", "found"),
    [
        (SYSTEMD, "kubepods.slice/kubepods-pod1_2.slice", ("1-2", KubeQos.GUARANTEED)),  # W-3, as the UID is written
        (SYSTEMD, "kubepods.slice/kubepods-besteffort.slice", None),
        (SYSTEMD, "kubepods.slice/kubepods-besteffort.slice/kubepods-burstable-pod1.slice", None),
        (SYSTEMD, "system.slice/kubepods-pod1.slice", None),
        (SYSTEMD, "kubepods/besteffort/pod1", None),
        (CGROUPFS, "kubepods/besteffort/pod1-2", ("1-2", KubeQos.BESTEFFORT)),
        (CGROUPFS, "kubepods/besteffort", None),
        (CGROUPFS, "kubepods/podium!", None),
        (CGROUPFS, "", None),
    ],
)
def test_parse_pod(kubepods: Kubepods, path: str, found: tuple[str, KubeQos] | None) -> None:
    assert kubepods.parse_pod(path) == found


@pytest.mark.parametrize("uid", ["", "a/b", "..", "a\0", "x" * 200])
def test_a_uid_that_is_no_file_name_is_refused(uid: str) -> None:
    with pytest.raises(ValueError, match="pod UID"):
        CGROUPFS.pod_dir(uid, KubeQos.BURSTABLE)


@given(
    st.sampled_from(Driver),
    st.sampled_from(["/", "/kubelet", "/a-b/c"]),
    st.from_regex(r"[0-9a-f]{8}-[0-9a-f]{4}|[0-9a-f]{32}", fullmatch=True),
    st.sampled_from(KubeQos),
    st.sampled_from(["docker", "containerd", "cri-o", "pouch"]),
)
def test_paths_parse_back(driver: Driver, root: str, uid: str, kube_qos: KubeQos, scheme: str) -> None:
    kubepods = Kubepods(driver, root)
    pod_dir = kubepods.pod_dir(uid, kube_qos)
    assert kubepods.parse_pod(pod_dir) == (uid, kube_qos)
    assert pod_dir.startswith(kubepods.qos_dir(kube_qos) + "/")
    container = kubepods.container_dir(pod_dir, f"{scheme}://{uid.replace('-', '')}")
    assert kubepods.parse_container(container.rpartition("/")[2]) == uid.replace("-", "")
    assert not container.startswith("/")
    assert kubepods.parse_pod(container) is None


@pytest.mark.parametrize(
    ("kubepods", "name", "qos", "cgroup_path", "path"),
    [  # W-4, V-16
        (None, "nginx", "LS", None, "host-latency-sensitive/nginx"),
        (None, "nginx", "LSE", None, "host-latency-sensitive/nginx"),
        (None, "log", "BE", None, "host-best-effort/log"),
        (None, "x", "SYSTEM", None, "x"),
        (
            SYSTEMD,
            "x",
            "BE",
            {"base": "KubepodsBesteffort", "parentDir": "hadoop", "relativePath": "nm"},
            "kubepods.slice/kubepods-besteffort.slice/hadoop/nm",
        ),
        (CGROUPFS, "x", "", {"base": "Kubepods", "relativePath": "nm"}, "kubepods/nm"),
        (None, "edge", "LS", {"base": "CgroupRoot", "parentDir": "infra/", "relativePath": "edge/"}, "infra/edge"),
        (None, "edge", "LS", {"base": "other", "parentDir": "/infra"}, "infra"),
    ],
)
def test_host_app_dir(
    kubepods: Kubepods | None, name: str, qos: str, cgroup_path: dict[str, str] | None, path: str
) -> None:
    assert host_app_dir(kubepods, name, qos, cgroup_path) == path


@pytest.mark.parametrize(
    ("name", "cgroup_path"),
    [
        ("", None),
        ("a", {}),
        ("a", {"base": "CgroupRoot", "parentDir": "/"}),
        ("a", {"base": "CgroupRoot", "parentDir": "..", "relativePath": "etc"}),
        ("../x", None),
        ("a", {"base": "Kubepods", "relativePath": "nm"}),  # the kubelet's tree is unknown
    ],
)
def test_host_app_dir_refuses_what_is_no_cgroup_below_the_root(name: str, cgroup_path: dict[str, str] | None) -> None:
    with pytest.raises(ValueError, match="host application"):
        host_app_dir(None, name, "SYSTEM", cgroup_path)
