"""Node facts from the machine: a CPU that is unplugged is gone in the next tick, not at the next slow look."""

from __future__ import annotations

from pathlib import Path

from koordlet.config.flags import parse
from koordlet.inputs import NodeInput
from koordlet.model.cpuset import CpuSet
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


def test_cpus_that_the_kubelet_gives_away_are_known_in_the_same_tick(tmp_path: Path) -> None:
    tree = v1_two_sockets_ht(tmp_path)
    state = tmp_path / "kubelet/cpu_manager_state"
    state.parent.mkdir(exist_ok=True)
    node = NodeInput(parse(["--mode=standalone", "--pods=x.json"], {}), tree.host, lambda name, ok: None)
    assert node.poll(0.0).exclusive.cpus == CpuSet()
    state.write_text('{"policyName":"static","defaultCpuSet":"0-1,3-5,7","entries":{"u":{"main":"2,6"}}}')
    assert str(node.poll(1.0).exclusive.cpus) == "2,6"
    state.write_text('{"policyName":"static","defaultCpuSet":"","entries":{')  # torn: what was known stays
    assert str(node.poll(2.0).exclusive.cpus) == "2,6"
    state.write_text('{"policyName":"none","defaultCpuSet":"","entries":{}}  ')
    assert node.poll(3.0).exclusive.cpus == CpuSet()


def test_interrupts_are_looked_at_only_when_asked_for(tmp_path: Path) -> None:
    tree = v1_two_sockets_ht(tmp_path)
    tree.put("proc/irq", {"24": {"smp_affinity_list": "0-7\n"}, "25": {"smp_affinity_list": "junk\n"}})
    quiet = NodeInput(parse(["--mode=standalone"], {}), tree.host, lambda name, ok: None)
    asked = NodeInput(parse(["--mode=standalone", "--irq-isolation"], {}), tree.host, lambda name, ok: None)
    assert quiet.poll(0.0).irqs == ()
    assert asked.poll(0.0).irqs == ((24, CpuSet(range(8))),)


def test_what_of_the_nodes_facts_counts_as_absent_is_a_note(tmp_path: Path) -> None:
    tree = v1_two_sockets_ht(tmp_path)
    facts = tmp_path / "node.yaml"
    facts.write_text('metadata: {annotations: {node.koordinator.sh/cpu-normalization-ratio: "abc"}}\n')
    node = NodeInput(parse(["--mode=standalone", f"--node={facts}"], {}), tree.host, lambda name, ok: None)
    node.poll(0.0)
    assert node.error == ""
    assert "cpu-normalization-ratio" in " ".join(node.notes)
