"""Device objects from device files, sysfs and NVML: worked examples of spec/api 1.4, and when they are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.nvml import Nvml
from koordlet.kernel.rdma import read_rdma
from koordlet.kube.objects import DEVICES, Metadata, NodeObject
from koordlet.model.device import Device, DeviceSet, Health, Place
from koordlet.model.status import ApplyReport, Snapshot, TickStats
from koordlet.model.view import NodeView
from koordlet.report.device_publication import DeviceInput, DevicePublication
from koordlet.report.devices import desired, device_object, merged
from koordlet.sources.nvidia import NvidiaGpus, mark, model_label, pci_address
from koordlet.sources.xpu import PARTITIONS, XpuFiles
from tests.hosts.nvml import FakeNvml, gpu_tree
from tests.hosts.objects import Objects
from tests.hosts.tree import HostTree

PATH = f"{DEVICES}/node-a"
WALL_S = 1_790_000_000.0
WHEN = "2026-09-21T14:13:20Z"


def xpu(minor: int, peers: str | None = None, **more: Any) -> dict[str, Any]:
    links = {} if peers is None else {"p2pLinks": [{"peerMinor": peers, "type": "HCCS"}]}
    found = {"vendor": "huawei", "model": "Ascend-910B", "uuid": f"u{minor}", "minor": str(minor)}
    return {**found, "resources": {"gpu-memory": "64Gi"}, "topology": links, **more}


def written(directory: Path, **files: Any) -> XpuFiles:
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / f"{name}.json").write_text(text)
    return XpuFiles(directory)


def test_v54_partitions_each_once(tmp_path: Path) -> None:
    found = written(tmp_path / "x", a=[xpu(0, "1"), xpu(1, "0")]).poll()
    assert found.labels["node.koordinator.sh/gpu-partition-policy"] == "Prefer"
    assert json.loads(found.annotations[PARTITIONS]) == {
        "2": [{"minors": [0, 1], "gpuLinkType": "HCCS", "allocationScore": 1}]
    }
    assert (found.labels["node.koordinator.sh/gpu-vendor"], found.labels["node.koordinator.sh/gpu-model"]) == (
        "huawei",
        "Ascend-910B",
    )
    row = device_object(found.devices[0])
    assert row["resources"] == {"koordinator.sh/gpu-memory": "64Gi", "koordinator.sh/gpu-memory-ratio": "100"}
    assert (row["type"], row["id"], row["minor"], row["health"]) == ("gpu", "u0", 0, True)
    assert row["topology"] == {"socketID": -1, "nodeID": -1, "pcieID": ""}
    assert "conditions" not in row


def test_must_honor_and_a_place(tmp_path: Path) -> None:
    topology = {
        "p2pLinks": [],
        "mustHonorPartition": True,
        "nodeID": "1",
        "pcieID": "pci0000:3a",
        "busID": "0000:3b:00.0",
    }
    found = written(tmp_path / "x", a=[xpu(0, topology=topology)]).poll()
    assert found.labels["node.koordinator.sh/gpu-partition-policy"] == "Honor"
    assert found.devices[0].place == Place(1, "pci0000:3a", "0000:3b:00.0")
    assert found.annotations == {}


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ("{", "bad.json"),
        ({"not": "a list"}, "not a list"),
        ([{**xpu(0), "minor": "x"}], "'x' is not a number"),
        ([{"uuid": "u9"}], "minor"),
        ([xpu(0, resources={"gpu-memory": "lots"})], "gpu-memory"),
        ([xpu(0, topology={"nodeID": 1})], "nodeID"),
        ([xpu(1)], "named twice"),
    ],
    ids=["no-json", "no-list", "minor", "no-minor", "quantity", "type", "twice"],
)
def test_one_bad_file_or_device_hides_no_other(tmp_path: Path, bad: Any, named: str) -> None:
    found = written(tmp_path / "x", a=[xpu(1)], bad=bad).poll()
    assert [device.id for device in found.devices] == ["u1"]
    assert len(found.faults) == 1
    assert named in found.faults[0]


def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    files = XpuFiles(tmp_path / "x")
    assert files.poll() == DeviceSet()
    written(tmp_path / "x", a=[xpu(0)])
    first = files.poll()
    assert len(first.devices) == 1
    assert files.poll() is first
    written(tmp_path / "x", a=[xpu(0), xpu(1)])
    assert len(files.poll().devices) == 2


def rdma_tree(root: Path, state: str = "4: ACTIVE\n", name: str = "mlx5_1") -> HostTree:
    tree = HostTree(root, CgroupVersion.V2)
    pci = "sys/devices/pci0000:3a/0000:3a:00.0"
    for address, vf in (("0000:3b:00.0", False), ("0000:3b:00.2", True), ("0000:3b:00.1", True)):
        tree.put(f"{pci}/{address}", {"class": "0x020000\n", "numa_node": "1\n"})
        tree.put(f"sys/bus/pci/devices/{address}", {})
        (tree.root / f"sys/bus/pci/devices/{address}").rmdir()
        (tree.root / f"sys/bus/pci/devices/{address}").symlink_to(tree.root / pci / address)
        ib = name if not vf else f"mlx5_{2 + (address[-1] == '2')}"
        tree.put(f"sys/class/infiniband/{ib}/ports/1/state", state)
        (tree.root / f"sys/class/infiniband/{ib}/device").symlink_to(tree.root / pci / address)
        if vf:
            (tree.root / pci / address / "physfn").symlink_to("../0000:3b:00.0")
            (tree.root / pci / f"0000:3b:00.0/virtfn{address[-1]}").symlink_to(f"../{address}")
    tree.put(f"{pci}/0000:3b:00.0/sriov_numvfs", "2\n")
    tree.put(f"{pci}/0000:3b:00.0/infiniband_verbs/uverbs7", {})
    return tree


def test_rdma_with_virtual_functions(tmp_path: Path) -> None:
    ((device,), faults) = read_rdma(rdma_tree(tmp_path).host)
    assert faults == ()
    assert device_object(device) == {
        "type": "rdma",
        "id": "0000:3b:00.0",
        "minor": 1,
        "health": True,
        "resources": {"koordinator.sh/rdma": "100"},
        "topology": {"socketID": -1, "nodeID": 1, "pcieID": "pci0000:3a", "busID": "0000:3b:00.0"},
        "vfGroups": [{"vfs": [{"minor": -1, "busID": "0000:3b:00.1"}, {"minor": -1, "busID": "0000:3b:00.2"}]}],
    }


def test_rdma_of_another_driver_and_a_port_that_is_down(tmp_path: Path) -> None:
    ((device,), _) = read_rdma(rdma_tree(tmp_path, "1: DOWN\n", "irdma0").host)
    assert (device.minor, device.healthy) == (7, False)


def test_no_infiniband_no_device(tmp_path: Path) -> None:
    assert read_rdma(HostTree(tmp_path, CgroupVersion.V2).host) == ((), ())


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("Tesla T4", "Tesla-T4"),
        ("NVIDIA GeForce RTX 2080 Ti", "GeForce-RTX-2080-Ti"),
    ],
    ids=["v23-a100", "v23-t4", "geforce"],
)
def test_v23_model_label(name: str, label: str) -> None:
    assert model_label(name) == label


def test_pci_addresses_as_sysfs_writes_them() -> None:
    assert pci_address("00000000:3B:00.0\0\0") == "0000:3b:00.0"
    assert pci_address("00010000:3B:00.0") == "00010000:3b:00.0"


def gpus_of(host: Host, *names: str) -> tuple[NvidiaGpus, FakeNvml]:
    fake = FakeNvml(*names)
    return NvidiaGpus(host, Nvml(host, lambda: fake)), fake


def test_gpus_and_their_labels(tmp_path: Path) -> None:
    gpus, _ = gpus_of(gpu_tree(tmp_path).host, "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB")
    found = gpus.poll()
    assert found.labels == {
        "node.koordinator.sh/gpu-vendor": "nvidia",
        "node.koordinator.sh/gpu-model": "A100-SXM4-80GB",
        "node.koordinator.sh/gpu-driver-version": "570.1",
    }
    assert device_object(found.devices[1]) == {
        "type": "gpu",
        "id": "GPU-1",
        "minor": 1,
        "health": True,
        "resources": {
            "koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory": "80Gi",
            "koordinator.sh/gpu-memory-ratio": "100",
        },
        "topology": {"socketID": -1, "nodeID": 0, "pcieID": "pci0000:3a", "busID": "0000:3c:00.0"},
    }


def test_v23_mixed_models_have_no_label(tmp_path: Path) -> None:
    found = gpus_of(gpu_tree(tmp_path).host, "Tesla T4", "Tesla P40")[0].poll()
    assert "node.koordinator.sh/gpu-model" not in found.labels


def test_without_a_driver_the_library_is_not_even_loaded(tmp_path: Path) -> None:
    def load() -> Any:
        raise AssertionError("loaded")

    host = HostTree(tmp_path, CgroupVersion.V2).host
    assert NvidiaGpus(host, Nvml(host, load)).poll() == DeviceSet()


def test_a_missing_library_is_a_fault_and_no_end(tmp_path: Path) -> None:
    def load() -> Any:
        raise ModuleNotFoundError("No module named 'pynvml'")

    host = gpu_tree(tmp_path).host
    found = NvidiaGpus(host, Nvml(host, load)).poll()
    assert found.devices == ()
    assert "pynvml" in found.faults[0]


def test_health_by_xid_and_recovery_with_the_driver(tmp_path: Path) -> None:
    gpus, nvml = gpus_of(gpu_tree(tmp_path).host, "Tesla T4", "Tesla T4")
    gpus.poll()
    for xid in (13, 31, 43, 45, 68, 109):  # faults of programs
        mark(nvml, FakeNvml.Row(eventType=8, eventData=xid, device=0), gpus._sick)
    assert all(device.healthy for device in gpus.poll().devices)
    mark(nvml, FakeNvml.Row(eventType=8, eventData=48, device=0), gpus._sick)
    first, second = gpus.poll().devices
    assert (first.health, second.healthy) == (
        Health(False, "Xid48", "Xid error detected on device, error code: 48"),
        True,
    )
    nvml.error = FakeNvml.NVMLError("driver is gone")
    assert gpus.poll().faults == ("nvml: driver is gone",)
    nvml.error = None
    assert all(device.healthy for device in gpus.poll().devices)
    assert nvml.inits == 2


def test_a_session_that_somebody_else_began_anew_forgets_old_faults(tmp_path: Path) -> None:
    host = gpu_tree(tmp_path).host
    fake = FakeNvml("Tesla T4", "Tesla T4")
    session = Nvml(host, lambda: fake)
    gpus = NvidiaGpus(host, session)
    gpus.poll()
    mark(fake, FakeNvml.Row(eventType=8, eventData=48, device=0), gpus._sick)
    session.close()
    assert all(device.healthy for device in gpus.poll().devices)


def test_minors_and_ids_for_the_pod_resources_proxy() -> None:
    rig = Rig()
    rig.found = DeviceSet((gpu(0), gpu(3), Device("rdma", "0000:3b:00.0", 1, ())))
    rig.look()
    assert {minor: device.id for minor, device in rig.publication.gpus.items()} == {0: "GPU-0", 3: "GPU-3"}


def test_a_gpu_that_was_reset_is_healthy_again(tmp_path: Path) -> None:
    gpus, nvml = gpus_of(gpu_tree(tmp_path).host, "Tesla T4", "Tesla T4")
    gpus.poll()
    mark(nvml, FakeNvml.Row(eventType=8, eventData=79, device=1), gpus._sick)
    board = nvml.boards.pop()
    assert len(gpus.poll().devices) == 1
    nvml.boards.append(board)
    assert all(device.healthy for device in gpus.poll().devices)


class Rig:
    def __init__(self) -> None:
        self.api = Objects()
        self.found = DeviceSet()
        self.now_s, self.wall_s = 100.0, WALL_S
        self.node = NodeObject(Metadata("node-a", "1f0c"))
        self.publication = DevicePublication(lambda: self.found, lambda: self.node)

    def look(self, after_s: float = 3.0) -> bool:
        self.now_s += after_s
        self.wall_s += after_s
        snapshot = Snapshot(NodeView(self.now_s), {}, ApplyReport(), TickStats(), self.wall_s)
        if not self.publication.due(snapshot, self.now_s):
            return False
        self.publication.publish(self.api, snapshot, self.now_s)  # type: ignore[arg-type]
        return True


def gpu(minor: int, health: Health | None = None) -> Device:
    return Device("gpu", f"GPU-{minor}", minor, (("koordinator.sh/gpu-core", "100"),), health=health)


def test_a_node_without_devices_gets_no_object_until_it_has_one() -> None:
    rig = Rig()
    rig.look()
    assert rig.api.stored == {}
    rig.found = DeviceSet((gpu(0),), {"node.koordinator.sh/gpu-vendor": "nvidia"})
    assert rig.look()
    assert rig.api.stored[PATH]["spec"]["devices"][0]["id"] == "GPU-0"
    rig.found = DeviceSet()
    assert rig.look()
    assert rig.api.stored[PATH]["spec"]["devices"] == []
    assert "node.koordinator.sh/gpu-vendor" not in rig.api.stored[PATH]["metadata"]["labels"]


def test_an_unhealthy_device_is_one_update_and_its_time_stays() -> None:
    rig = Rig()
    rig.found = DeviceSet((gpu(0, Health(True)), gpu(1, Health(True))))
    rig.look()
    (condition,) = rig.api.stored[PATH]["spec"]["devices"][0]["conditions"]
    assert (condition["status"], condition["reason"]) == ("True", "DeviceHealthy")
    first = condition["lastTransitionTime"]
    rig.found = DeviceSet((gpu(0, Health(False, "Xid48", "gone")), gpu(1, Health(True))))
    assert rig.look(600)
    one, two = (row["conditions"][0] for row in rig.api.stored[PATH]["spec"]["devices"])
    assert (one["status"], one["reason"], one["message"]) == ("False", "Xid48", "gone")
    assert (one["lastTransitionTime"] > first, two["lastTransitionTime"]) == (True, first)
    writes = len(rig.api.writes)
    for _ in range(40):
        rig.look()
    assert len(rig.api.writes) == writes


def test_what_others_wrote_stays() -> None:
    rig = Rig()
    rig.found = DeviceSet((gpu(0),))
    rig.look()
    theirs = {"type": "fpga", "id": "f0", "minor": 0, "health": True}
    found = rig.api.stored[PATH]
    found["spec"]["devices"].insert(0, theirs)
    found["metadata"]["labels"] = {"theirs": "1"}
    found["metadata"]["annotations"] = {"theirs": "2"}
    rig.api.put(PATH, found)
    rig.look(60)
    assert len(rig.api.writes) == 1
    rig.found = DeviceSet((gpu(0), gpu(1)))
    assert rig.look()
    found = rig.api.stored[PATH]
    assert [row["id"] for row in found["spec"]["devices"]] == ["f0", "GPU-0", "GPU-1"]
    assert (found["metadata"]["labels"], found["metadata"]["annotations"]) == ({"theirs": "1"}, {"theirs": "2"})


def test_merged_is_at_rest_after_one_round() -> None:
    wanted = desired("node-a", "1f0c", DeviceSet((gpu(0, Health(False)),), {"node.koordinator.sh/gpu-model": "m"}))
    for current in ({}, {"spec": {"devices": "garbage"}, "metadata": {"labels": None}}, {"spec": None}):
        made = merged(current, wanted, WALL_S)
        assert made is not None
        assert made["spec"]["devices"][0]["conditions"][0]["lastTransitionTime"] == WHEN
        assert merged(made, wanted, WALL_S + 99) is None


def test_device_files_come_before_nvml_and_rdma_beside_them(tmp_path: Path) -> None:
    tree = rdma_tree(tmp_path)
    files = written(tmp_path / "x", a=[xpu(0)])

    class Never(NvidiaGpus):
        def poll(self) -> DeviceSet:
            raise AssertionError("asked")

    found = DeviceInput(tree.host, files, Never(tree.host, Nvml(tree.host)), rdma=True).poll()
    assert [device.kind for device in found.devices] == ["gpu", "rdma"]
    assert [device.kind for device in DeviceInput(tree.host, files, None, rdma=False).poll().devices] == ["gpu"]
