"""When the predictor trains, what it drops, and what it does about files: pods, clocks and disks are not reliable."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from koordlet.model.pod import Pod, PodSet
from koordlet.model.qos import KubeQos
from koordlet.store.checkpoint import NODE_ITEMS
from koordlet.store.predictor import EMPTY_LIST_S, Predictor, PredictorConfig
from koordlet.store.rings import RingStore

WALL_S = 1_767_225_600.0


def pods(*uids: str, at_s: float | None = 0.0) -> PodSet:
    made = tuple(Pod(uid, "ns", uid, f"kubepods/{uid}", KubeQos.BURSTABLE) for uid in uids)
    return PodSet(made, revision=len(uids), at_s=at_s)


class Lab:
    def __init__(self, **changes: object) -> None:
        self.rings = RingStore()
        self.predictor = Predictor(self.rings, replace(PredictorConfig(), **changes))  # type: ignore[arg-type]

    def measured(self, now_s: float, *uids: str, mcpu: float = 1000.0) -> None:
        for kind, name in (("node", ""), *(("pod", uid) for uid in uids)):
            self.rings.push(self.rings.open(kind, name, "cpu"), now_s, mcpu)
            self.rings.push(self.rings.open(kind, name, "memory"), now_s, 2.0**30)

    def step(self, now_s: float, known: PodSet) -> bool:
        return self.predictor.step(known, now_s, WALL_S + now_s)

    def round(self, now_s: float, *uids: str) -> bool:
        self.measured(now_s, *uids)
        return self.step(now_s, pods(*uids))


def test_a_round_each_interval() -> None:
    lab = Lab()
    moments = [0.0, 10.2, 20.1, 30.0, 40.1, 49.9, 59.8, 70.0, 79.9, 90.0, 100.0, 110.0, 119.7, 130.0]
    assert [now_s for now_s in moments if lab.round(now_s, "a")] == [0.0, 59.8, 119.7]


def test_nothing_is_learnt_from_what_was_not_measured() -> None:
    """FAULT-30: the reference feeds zeros to the system model."""
    lab = Lab()
    assert not lab.step(1.0, pods("a"))
    assert lab.predictor.peak("__node-sys__") is None
    assert lab.round(2.0, "a")
    assert not lab.step(200.0, pods("a"))  # the samples are older than the window
    assert lab.round(201.0, "a")


def test_before_the_pods_are_known_nothing_starts() -> None:
    lab = Lab()
    lab.measured(1.0)
    assert not lab.step(1.0, pods(at_s=None))
    assert lab.predictor.peaks(NODE_ITEMS) == {}


def test_all_items_of_the_node_have_a_model_after_the_first_round() -> None:
    lab = Lab()
    lab.round(1.0, "a", "b")
    found = lab.predictor.peaks([*NODE_ITEMS, "a", "nobody"])
    assert set(found) == {*NODE_ITEMS, "a"}
    assert found["__node-koord-mid__"].mcpu == (25, 25, 25, 25, 25)  # nobody of that class: a zero sample
    assert found["__node-koord-prod__"].mcpu[0] == pytest.approx(2000, rel=0.05)
    assert found["__node-sys__"].mcpu[0] == 25  # the pods use more than the node: clamped


def test_a_pod_without_figures_is_passed_over() -> None:
    lab = Lab()
    lab.measured(1.0, "a")
    assert lab.step(1.0, pods("a", "new"))
    assert lab.predictor.peak("new") is None


def test_a_pod_that_had_no_figures_in_a_round_gets_its_model_before_the_next() -> None:
    """Recorded: the first report, 30 s after the start, carries what is reclaimable of every pod."""
    lab = Lab()
    lab.measured(1.0, "a")
    assert lab.step(1.0, pods("a", "new"))
    before = lab.predictor.peaks(["a", *NODE_ITEMS])
    assert not lab.step(11.0, pods("a", "new"))
    assert lab.predictor.peak("new") is None
    lab.measured(21.0, "a", "new")
    assert not lab.step(21.0, pods("a", "new"))
    assert lab.predictor.peak("new") is not None
    lab.measured(31.0, "a", "new", mcpu=4000.0)
    assert not lab.step(31.0, pods("a", "new"))
    assert lab.predictor.peaks(["a", *NODE_ITEMS]) == before, "nobody else learns between two rounds"


def test_models_that_nobody_feeds_expire_with_their_file(tmp_path: Path) -> None:
    lab = Lab(directory=tmp_path)
    lab.round(0.0, "a", "b")
    assert (tmp_path / "a").exists()
    for minute in range(1, 31):
        lab.round(minute * 60.0, "b")
    assert lab.predictor.peak("a") is not None
    lab.round(31 * 60.0, "b")
    assert lab.predictor.peak("a") is None
    assert not (tmp_path / "a").exists()
    assert (tmp_path / "b").exists()


def test_files_are_written_a_few_at_a_time_the_oldest_first(tmp_path: Path) -> None:
    uids = [f"uid-{number:02}" for number in range(20)]
    lab = Lab(directory=tmp_path, checkpoints_per_step=12)
    for minute, count in enumerate((12, 24, 27, 27)):
        lab.round(minute * 60.0, *uids)
        assert len(list(tmp_path.iterdir())) == count  # 20 pods and 7 items of the node
    stamps = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    for minute in range(4, 10):
        lab.round(minute * 60.0, *uids)
    assert stamps == {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    lab.round(600.0, *uids)
    again = [path.name for path in tmp_path.iterdir() if path.stat().st_mtime_ns != stamps[path.name]]
    assert len(again) == 12


def test_a_disk_that_refuses_is_told_and_tried_again(tmp_path: Path) -> None:
    directory = tmp_path / "models"
    directory.write_text("a file where the directory should be")
    lab = Lab(directory=directory)
    assert lab.round(0.0, "a")
    assert str(directory) in lab.predictor.error
    directory.unlink()
    assert lab.round(60.0, "a")
    assert lab.predictor.error == ""
    assert json.loads((directory / "a").read_text())["UID"] == "a"


def test_restored_models_go_on(tmp_path: Path) -> None:
    lab = Lab(directory=tmp_path)
    lab.measured(0.0, "a", mcpu=3000.0)
    lab.step(0.0, pods("a"))
    again = Lab(directory=tmp_path)
    assert again.round(5.0, "a")
    assert again.round(65.0, "a")
    found = again.predictor.peak("a")
    assert found is not None
    assert found.mcpu[0] == pytest.approx(1000, rel=0.05)
    assert found.mcpu[4] == pytest.approx(3000, rel=0.05)


def test_an_empty_list_right_after_the_start_deletes_no_model(tmp_path: Path) -> None:
    """A kubelet that has just started answers with no pods."""
    Lab(directory=tmp_path).round(0.0, "a")
    again = Lab(directory=tmp_path)
    again.measured(1.0)
    assert not again.step(1.0, pods())
    assert (tmp_path / "a").exists()
    assert again.round(2.0, "a")
    assert again.predictor.peak("a") is not None

    later = Lab(directory=tmp_path)
    later.measured(1.0)
    assert not later.step(1.0, pods())
    later.measured(1.0 + EMPTY_LIST_S)
    assert later.step(1.0 + EMPTY_LIST_S, pods())
    assert not (tmp_path / "a").exists()


def test_a_uid_never_leads_out_of_the_directory(tmp_path: Path) -> None:
    lab = Lab(directory=tmp_path / "models")
    lab.round(0.0, "../outside", "x/y", "", "a" * 250)
    assert [path.name for path in tmp_path.iterdir()] == ["models"]
    assert {path.name for path in (tmp_path / "models").iterdir()} == NODE_ITEMS
    assert lab.predictor.peak("../outside") is not None


def test_a_clean_stop_saves_all(tmp_path: Path) -> None:
    uids = [f"uid-{number}" for number in range(30)]
    lab = Lab(directory=tmp_path)
    lab.round(0.0, *uids)
    lab.predictor.save_all(WALL_S)
    assert {path.name for path in tmp_path.iterdir()} == {*uids, *NODE_ITEMS}
