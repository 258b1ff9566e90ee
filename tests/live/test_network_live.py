"""Shaping of real traffic between network namespaces: a world, a node that forwards, and two pods behind it.

Rates must be within a tenth of what is asked. Needs root and `ip`; nothing leaves these namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.act.attributes import Attributes
from koordlet.act.network import Network
from koordlet.kernel.net import NetDevice, TrafficControl
from koordlet.model.podeffects import NetworkClass, PodNetwork

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and ip"),
]

MBIT = 1_000_000
WORLD = "10.250.0.2"
PODS = {"limited": "10.250.1.2", "free": "10.250.2.2"}
SINK = """
import socket, sys
server = socket.create_server((sys.argv[1], 9000))
print("ready", flush=True)
peer, _ = server.accept()
while peer.recv(1 << 16):
    pass
"""
PUSH = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 9000), source_address=(sys.argv[2], 0))
data, sent, seconds = bytes(1 << 16), 0, float(sys.argv[3])
def push(until):
    count = 0
    while time.monotonic() < until:
        count += peer.send(data)
    return count
def unsent():
    import array, fcntl
    left = array.array("i", [0])
    fcntl.ioctl(peer, 0x5411, left)  # SIOCOUTQ
    return left[0]
push(time.monotonic() + 1.0)  # past the burst, with the window open
left, begun = unsent(), time.monotonic()
sent = push(begun + seconds)
print((sent + left - unsent()) * 8 / (time.monotonic() - begun))
"""


class Net:
    def __init__(self, state: Path) -> None:
        self.names = {role: f"kl{os.getpid()}{role}" for role in ("world", "node", *PODS)}
        self.state = state
        for name in self.names.values():
            self.ip("netns", "add", name)
        self.cable("world", WORLD, "10.250.0.1", "out")
        for role, address in PODS.items():
            self.cable(role, address, f"{address[:-1]}1", f"to{role}")
        self.inside("node", "ip", "route", "add", "default", "via", WORLD)
        self.inside("node", "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.control = TrafficControl(self.names["node"])
        self.network = self.agent()

    def agent(self) -> Network:
        return Network(Attributes(self.state, "boot"), control=self.control)

    def cable(self, role: str, address: str, gateway: str, device: str) -> None:
        node, name = self.names["node"], self.names[role]
        self.ip("link", "add", device, "netns", node, "type", "veth", "peer", "name", "eth0", "netns", name)
        self.inside("node", "ip", "addr", "add", f"{gateway}/24", "dev", device)
        self.inside("node", "ip", "link", "set", device, "up")
        self.inside(role, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        self.inside(role, "ip", "link", "set", "eth0", "up")
        self.inside(role, "ip", "route", "add", "default", "via", gateway)

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def inside(self, role: str, *words: str) -> str:
        done = subprocess.run(["ip", "netns", "exec", self.names[role], *words], check=True, capture_output=True)
        return done.stdout.decode()

    def rate_bps(self, source: str, target: str, seconds: float = 2.0) -> float:
        """TCP from one role to another, once the burst is over."""
        to, whence = (WORLD if role == "world" else PODS[role] for role in (target, source))
        sink = subprocess.Popen(
            ["ip", "netns", "exec", self.names[target], sys.executable, "-c", SINK, to], stdout=subprocess.PIPE
        )
        try:
            assert sink.stdout is not None
            sink.stdout.readline()
            return float(self.inside(source, sys.executable, "-c", PUSH, to, whence, str(seconds)))
        finally:
            sink.kill()
            sink.communicate()

    def qdisc(self, device: str) -> str:
        return self.inside("node", "tc", "qdisc", "show", "dev", device)

    def close(self) -> None:
        self.control.close()
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def lacks() -> str:
    """What this kernel has not, "" where it can do all that is asked of it here."""
    tries = {
        "veth devices": "ip link add name v0 type veth peer name v1",
        "the HTB qdisc": "ip link set lo up && tc qdisc add dev lo root handle 1: htb",
    }
    for what, words in tries.items():
        if subprocess.run(["unshare", "-n", "sh", "-c", words], capture_output=True).returncode != 0:
            return what
    return ""


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    if what := lacks():
        pytest.skip(f"this kernel has no {what}")
    made = Net(tmp_path / "attributes.json")
    yield made
    made.close()


def pod(role: str, parent: str, egress_bps: int | None = None, ingress_bps: int | None = None) -> PodNetwork:
    return PodNetwork(role, (), "podrules", f"pod{role}", parent, (PODS[role],), egress_bps, ingress_bps)


def classes(total: int, system: int, ls: tuple[int, int], be: tuple[int, int]) -> tuple[NetworkClass, ...]:
    rows = {"root": (total, total), "system": (system, total), "ls": ls, "be": be}
    return tuple(NetworkClass(name, (), "podrules", rate, ceil) for name, (rate, ceil) in rows.items())


def near(found: float, asked: float) -> bool:
    return 0.9 * asked <= found <= 1.1 * asked


@pytest.mark.parametrize("mbit", [20, 80])
def test_a_pods_own_limits_hold_in_both_directions(net: Net, mbit: int) -> None:
    report = net.network.apply((pod("limited", "ls", mbit * MBIT, mbit // 2 * MBIT), pod("free", "ls")), 0.0)
    assert report.errors == ()
    egress, ingress = net.rate_bps("limited", "world"), net.rate_bps("world", "limited")
    free = net.rate_bps("free", "world", 0.5)
    print(f"asked {mbit}/{mbit // 2} Mbit/s, egress {egress / MBIT:.1f}, ingress {ingress / MBIT:.1f}")
    assert near(egress, mbit * MBIT)
    assert near(ingress, mbit // 2 * MBIT)
    assert free > 3 * mbit * MBIT, "who has no limit is not slowed down"


def test_classes_bound_what_their_pods_send(net: Net) -> None:
    wishes = classes(200 * MBIT, 100 * MBIT, (60 * MBIT, 60 * MBIT), (20 * MBIT, 20 * MBIT))
    assert net.network.apply((*wishes, pod("limited", "be"), pod("free", "ls")), 0.0).errors == ()
    assert near(net.rate_bps("limited", "world"), 20 * MBIT)
    assert near(net.rate_bps("free", "world"), 60 * MBIT)
    changed = classes(200 * MBIT, 100 * MBIT, (60 * MBIT, 60 * MBIT), (40 * MBIT, 40 * MBIT))
    net.network.apply((*changed, pod("limited", "be"), pod("free", "ls")), 1.0)
    assert near(net.rate_bps("limited", "world"), 40 * MBIT)


def test_nothing_is_left_behind(net: Net) -> None:
    before = {device: net.qdisc(device) for device in ("out", "tolimited", "tofree")}
    net.network.apply((pod("limited", "ls", MBIT, MBIT),), 0.0)
    assert "htb" in net.qdisc("out")
    net.network.apply((), 1.0)
    assert {device: net.qdisc(device) for device in before} == before
    net.network.apply((pod("limited", "ls", MBIT, MBIT),), 2.0)
    net.network = net.agent()  # killed: the next one has only the file
    net.network.apply((), 3.0)
    assert {device: net.qdisc(device) for device in before} == before


def test_pods_come_and_go_without_leaks(net: Net) -> None:
    for turn in range(6):
        net.network.apply((pod("limited", "ls", (turn + 1) * MBIT), pod("free", "ls", MBIT)), float(turn))
        net.network.apply((pod("free", "ls", MBIT),), turn + 0.5)
    shown = net.inside("node", "tc", "class", "show", "dev", "out")
    assert shown.count("class htb") == 1
    assert net.inside("node", "tc", "filter", "show", "dev", "out").count("flowid") == 1
    calm = net.network.apply((pod("free", "ls", MBIT),), 5.6)
    assert calm is net.network.apply((pod("free", "ls", MBIT),), 6.0), "a calm round asks the kernel nothing"


def test_somebody_elses_qdisc_is_left_alone(net: Net) -> None:
    net.inside("node", "tc", "qdisc", "add", "dev", "out", "root", "handle", "7:", "tbf", "rate", "1gbit",
               "burst", "1mb", "latency", "50ms")  # fmt: skip
    report = net.network.apply((pod("limited", "ls", MBIT, MBIT),), 0.0)
    assert any("tbf" in error for error in report.errors)
    assert "tbf" in net.qdisc("out")
    assert "htb" in net.qdisc("tolimited"), "the other direction is shaped nevertheless"


def test_a_tree_that_somebody_removed_is_built_again(net: Net) -> None:
    net.network.apply((pod("limited", "ls", MBIT),), 0.0)
    net.inside("node", "tc", "qdisc", "del", "dev", "out", "root")
    net.network.apply((pod("limited", "ls", MBIT),), 20.0)
    assert "htb" in net.qdisc("out")
    assert net.control.default_device() == NetDevice(net.control.default_device().index, "out")  # type: ignore[union-attr]


def test_a_pod_without_an_ipv4_address_does_not_stop_the_others(net: Net) -> None:
    bare = PodNetwork("bare", (), "podrules", "podbare", "ls", (), MBIT, MBIT)
    report = net.network.apply((bare, pod("limited", "ls", MBIT, MBIT)), time.monotonic())
    assert report.errors == ()
    assert net.inside("node", "tc", "filter", "show", "dev", "out").count("flowid") == 1
