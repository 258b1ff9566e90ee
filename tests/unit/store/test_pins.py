"""The file of held CPUs: what is saved comes back; a broken file is set aside, a failed save is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import Allocation, BindPolicy, ExclusivePolicy, NumaShare
from koordlet.store.pins import PinFile

SHARES = st.lists(
    st.builds(NumaShare, st.integers(0, 7), st.none() | st.integers(0, 10**6), st.none() | st.integers(0, 2**40)),
    max_size=3,
).map(tuple)
PINS = st.dictionaries(
    st.text(min_size=1, max_size=40),
    st.builds(
        Allocation,
        st.sets(st.integers(0, 511), min_size=1).map(CpuSet),
        st.sampled_from(BindPolicy),
        st.sampled_from(ExclusivePolicy),
        SHARES,
    ),
    max_size=5,
)


@given(pins=PINS)
def test_what_is_saved_comes_back(tmp_path_factory: pytest.TempPathFactory, pins: dict[str, Allocation]) -> None:
    path = tmp_path_factory.mktemp("state") / "pins.json"
    assert PinFile(path).save(pins)
    assert PinFile(path).load() == pins


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"version":2,"pins":{}}', '{"version":1,"pins":{"a":{"cpuset":"x"}}}',
     '{"version":1,"pins":{"a":{"cpuset":"","bindPolicy":"FullPCPUs","exclusivePolicy":"None","numaNodeResources":[]}}}'],
)  # fmt: skip
def test_a_broken_file_is_set_aside(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pins.json"
    path.write_text(text)
    assert PinFile(path).load() == {}
    assert not path.exists()
    assert (tmp_path / "pins.broken").read_text() == text


def test_no_file_is_no_pins(tmp_path: Path) -> None:
    assert PinFile(tmp_path / "pins.json").load() == {}


def test_a_save_that_fails_is_told_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "pins.json"
    file = PinFile(path)
    file.save({"a": Allocation(CpuSet((1,)))})
    (tmp_path / "pins.new").mkdir()  # the draft cannot be written
    assert not file.save({"b": Allocation(CpuSet((2,)))})
    assert "pinned CPUs would move" in file.error
    assert PinFile(path).load() == {"a": Allocation(CpuSet((1,)))}
    (tmp_path / "pins.new").rmdir()
    assert file.save({})
    assert file.error == ""
