"""Node facts from the machine: a CPU that is unplugged is gone in the next tick, not at the next slow look."""

from __future__ import annotations

from pathlib import Path

from koordlet.config.flags import parse
from koordlet.inputs import NodeInput
from tests.hosts.tree import v1_two_sockets_ht


def test_a_plugged_cpu_is_seen_in_the_same_tick(tmp_path: Path) -> None:
    tree = v1_two_sockets_ht(tmp_path)
    node = NodeInput(parse(["--mode=standalone"], {}), tree.host, lambda name, ok: None)
    shown = []
    for now_s, online in enumerate(("0-7", "0-7", "0-6", "0-7")):
        (tmp_path / "sys/devices/system/cpu/online").write_text(f"{online}\n")
        topology = node.poll(float(now_s)).topology
        assert topology is not None
        shown.append(str(topology.online))
    assert shown == ["0-7", "0-7", "0-6", "0-7"]
