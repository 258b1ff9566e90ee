"""The kubelet is asked as soon as a pod's or container's cgroup comes or goes."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.kernel.kubepods import Driver, Kubepods
from koordlet.model.qos import KubeQos
from koordlet.sources.podwake import PodWake
from tests.native.trees import Tree

PLAIN = Kubepods(Driver.CGROUPFS)


class Woken:
    def __init__(self) -> None:
        self.event = threading.Event()

    def __call__(self) -> None:
        self.event.set()

    def soon(self) -> bool:
        found = self.event.wait(10)
        self.event.clear()
        return found


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path / "node")
    for kube_qos in KubeQos:
        made.make(PLAIN.qos_dir(kube_qos))
    return made


@pytest.fixture
def woken(tree: Tree) -> Iterator[Woken]:
    told = Woken()
    wake = PodWake(tree.host, PLAIN, told).start()
    assert told.soon()  # once it watches
    yield told
    wake.stop()
    assert not wake._thread.is_alive()
    assert wake.error == ""


def container_told(pod: Path, woken: Woken) -> Path:
    container = pod / "abc"
    for _ in range(200):  # the pod's own watch comes a moment after the pod
        container.mkdir()
        if woken.event.wait(0.05):
            break
        container.rmdir()
    assert woken.soon()
    return container


@pytest.mark.parametrize("kube_qos", KubeQos)
def test_a_pod_of_each_class_and_its_containers(tree: Tree, woken: Woken, kube_qos: KubeQos) -> None:
    pod = tree.host.dir("cpu", PLAIN.pod_dir("uid-1", kube_qos))
    pod.mkdir()
    assert woken.soon()
    container = container_told(pod, woken)
    container.rmdir()
    assert woken.soon()
    pod.rmdir()
    assert woken.soon()


def test_pods_that_are_there_already_are_watched(tree: Tree) -> None:
    pod = tree.host.dir("cpu", PLAIN.pod_dir("uid-1", KubeQos.BURSTABLE))
    pod.mkdir()
    told = Woken()
    wake = PodWake(tree.host, PLAIN, told).start()
    assert told.soon()  # once it watches
    (pod / "abc").mkdir()
    assert told.soon()
    wake.stop()


def test_a_class_made_anew_with_pods_in_it_is_followed(tree: Tree, woken: Woken) -> None:
    above = tree.host.dir("cpu", PLAIN.qos_dir(KubeQos.BESTEFFORT))
    shutil.rmtree(above)
    assert woken.soon()
    pod = tree.host.dir("cpu", PLAIN.pod_dir("uid-1", KubeQos.BESTEFFORT))
    pod.mkdir(parents=True)
    assert woken.soon()
    container_told(pod, woken)
