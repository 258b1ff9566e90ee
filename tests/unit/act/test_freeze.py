"""A group that is frozen for a moment is thawed, whatever happens to the agent meanwhile."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from koordlet.act.attributes import Attributes
from koordlet.act.attributes_undo import left_behind, undo_attributes
from koordlet.act.evict import Evictor
from koordlet.act.freeze import Freezer
from koordlet.kernel.host import CgroupVersion
from tests.hosts.tree import HostTree

VERSIONS = [CgroupVersion.V1, CgroupVersion.V2]
ROOT = Path(__file__).parents[3]
DIES_FROZEN = """
import os, signal, sys
from pathlib import Path
from koordlet.act.attributes import Attributes
from koordlet.act.freeze import Freezer
from koordlet.kernel.host import CgroupVersion
from tests.hosts.tree import host_below
host = host_below(Path(sys.argv[1]), CgroupVersion(sys.argv[3]))
with Freezer(host, Attributes(Path(sys.argv[2]), "boot")).hold("batch/a"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Group:
    def __init__(self, root: Path, version: CgroupVersion) -> None:
        self.tree = HostTree(root / "host", version)
        self.tree.cgroup("batch/a")
        self.file = root / "attributes.json"
        v1 = version is CgroupVersion.V1
        self.path = self.tree.host.dir("freezer", "batch/a") / ("freezer.state" if v1 else "cgroup.freeze")
        self.frozen, self.thawed = ("FROZEN", "THAWED") if v1 else ("1", "0")

    def state(self) -> str:
        return self.path.read_text().strip()

    def attributes(self) -> Attributes:
        return Attributes(self.file, "boot")

    def agent_dies_frozen(self) -> None:
        words = [str(self.tree.root), str(self.file), self.tree.version.value]
        died = subprocess.run([sys.executable, "-c", DIES_FROZEN, *words], cwd=ROOT, check=False)
        assert died.returncode == -signal.SIGKILL
        assert self.state() == self.frozen


@pytest.fixture(params=VERSIONS, ids=["v1", "v2"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Group:
    return Group(tmp_path, request.param)


def test_noted_while_it_lasts_and_forgotten_afterwards(group: Group) -> None:
    with Freezer(group.tree.host, group.attributes()).hold("batch/a"):
        assert group.state() == group.frozen
        assert left_behind(group.attributes()) == ("frozen cgroup batch/a",)
    assert group.state() == group.thawed
    assert left_behind(group.attributes()) == ()


def test_the_next_agent_thaws_what_a_killed_one_left(group: Group) -> None:
    group.agent_dies_frozen()
    Evictor(
        group.tree.host, lambda record: None, lambda evict, result: None, lambda evict: True,
        attributes=group.attributes(),
    )  # fmt: skip
    assert group.state() == group.thawed
    assert left_behind(group.attributes()) == ()


def test_undo_thaws_it_too(group: Group) -> None:
    group.agent_dies_frozen()
    assert undo_attributes(group.tree.host, group.attributes()) == ()
    assert group.state() == group.thawed


def test_another_group_of_that_name_is_left_alone(group: Group) -> None:
    group.agent_dies_frozen()
    fresh = group.path.with_name("fresh")
    fresh.write_text(group.frozen)  # another inode, frozen by somebody else
    fresh.rename(group.path)
    assert Freezer(group.tree.host, group.attributes()).thaw_all() == ()
    assert group.state() == group.frozen
    assert left_behind(group.attributes()) == ()


def test_what_cannot_be_noted_is_not_frozen(group: Group) -> None:
    group.file.with_suffix(".new").mkdir()
    with Freezer(group.tree.host, group.attributes()).hold("batch/a"):
        assert group.state() == group.thawed


def test_what_cannot_be_thawed_stays_noted(group: Group) -> None:
    freezer = Freezer(group.tree.host, group.attributes(), refuse_thaw(group))
    with pytest.raises(OSError, match="Input/output"), freezer.hold("batch/a"):
        pass
    assert left_behind(group.attributes()) == ("frozen cgroup batch/a",)
    assert Freezer(group.tree.host, group.attributes()).thaw_all() == ()
    assert group.state() == group.thawed


def refuse_thaw(group: Group):
    def write(path: Path, data: bytes) -> None:
        if data.decode() == group.thawed:
            raise OSError(errno.EIO, "Input/output error", str(path))
        path.write_bytes(data)

    return write


def test_without_a_freezer_nothing_is_noted(tmp_path: Path) -> None:
    group = Group(tmp_path, CgroupVersion.V1)
    with Freezer(group.tree.host, group.attributes()).hold("batch/none"):
        pass
    assert not group.file.exists()
