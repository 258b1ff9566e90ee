"""Traffic control of network devices through netlink: an HTB tree and filters by address. The only user of pyroute2.

Rates are bits per second. Sources: tc-htb(8), tc-u32(8).
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import Any, Final

from koordlet.model.units import clamp

ROOT: Final = 0x10000
"""Our qdisc `1:`; class `1:n` is ROOT | n."""
_IP: Final = 0x0800
_OFFSET: Final = {"src": 12, "dst": 16}
"""Of the address in an IPv4 header."""
_REPLACEABLE: Final = frozenset(("noqueue", "mq", "pfifo_fast", "fq_codel", "fq", "pfifo", ""))
"""What a kernel puts there by itself; anything else is somebody's work."""
BITS: Final = 8


@dataclass(frozen=True, slots=True)
class NetDevice:
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class HtbClass:
    """parent: minor of the class above, 0 for the qdisc itself. prio: smaller is served first."""

    minor: int
    parent: int
    rate_bps: int
    ceil_bps: int
    prio: int = 0


def burst_bytes(rate: int, hz: int = 1000) -> int:
    """What a class may send at once: a millisecond's worth and one packet (W34). rate: bytes per second."""
    return rate // hz + 1600


class TrafficControl:
    """One netlink socket, opened on first use. Methods raise OSError with the kernel's errno.

    netns: name of another network namespace (tests).
    """

    def __init__(self, netns: str | None = None) -> None:
        self._netns = netns
        self._socket: Any = None

    def default_device(self) -> NetDevice | None:
        """Where the default IPv4 route leads."""
        return next(
            (self._device(route.get_attr("RTA_OIF")) for route in self._call("get_default_routes", family=2)), None
        )

    def device_to(self, ip: str) -> NetDevice | None:
        """Where packets to a local address leave the node's own stack; None where there is no route."""
        try:
            route = next(iter(self._call("route", "get", dst=ip)), None)
        except OSError as error:
            if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
                return None
            raise
        return None if route is None else self._device(route.get_attr("RTA_OIF"))

    def taken(self, device: NetDevice) -> str:
        """Kind of a root qdisc that is neither the kernel's own nor ours, "" when the device is free."""
        kind, handle = self._root(device)
        return "" if kind in _REPLACEABLE or (kind == "htb" and handle == ROOT) else kind

    def is_ours(self, device: NetDevice) -> bool:
        return self._root(device) == ("htb", ROOT)

    def begin(self, device: NetDevice, default: int) -> None:
        """Our empty tree. default: class of what no filter names, 0 to let it pass at once."""
        self.end(device)
        self._call("tc", "add", kind="htb", index=device.index, handle=ROOT, default=default)

    def end(self, device: NetDevice) -> None:
        """The kernel's own qdisc again."""
        if self.is_ours(device):
            self._call("tc", "del", index=device.index, handle=ROOT, root=True)

    def set_class(self, device: NetDevice, made: HtbClass, *, new: bool) -> None:
        rate, ceil = (max(bps // BITS, 1) for bps in (made.rate_bps, made.ceil_bps))
        self._call(
            "tc",
            "add-class" if new else "change-class",
            kind="htb",
            index=device.index,
            handle=ROOT | made.minor,
            parent=ROOT | made.parent,
            rate=rate,
            ceil=ceil,
            burst=burst_bytes(rate),
            cburst=burst_bytes(ceil),
            prio=made.prio,
            quantum=clamp(made.rate_bps // BITS // 10, 1514, 60_000),
        )

    def delete_class(self, device: NetDevice, minor: int) -> None:
        self._call("tc", "del-class", index=device.index, handle=ROOT | minor)

    def add_filter(self, device: NetDevice, preference: int, ip: str, end: str, minor: int) -> None:
        """end: "src" or "dst"."""
        number = int.from_bytes(bytes(map(int, ip.split("."))), "big")
        self._call(
            "tc",
            "add-filter",
            kind="u32",
            index=device.index,
            parent=ROOT,
            prio=preference,
            protocol=_IP,
            target=ROOT | minor,
            keys=[f"{number:#010x}/0xffffffff+{_OFFSET[end]}"],
        )

    def delete_filter(self, device: NetDevice, preference: int) -> None:
        """All filters of that preference; each has its own."""
        info = socket.htons(_IP) | preference << 16
        self._call("tc", "del-filter", index=device.index, parent=ROOT, info=info)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _root(self, device: NetDevice) -> tuple[str, int]:
        for row in self._call("get_qdiscs", device.index):
            if row["parent"] == 0xFFFFFFFF:  # root
                return row.get_attr("TCA_KIND") or "", row["handle"]
        return "", 0

    def _device(self, index: int) -> NetDevice | None:
        for link in self._call("get_links", index):
            return NetDevice(index, link.get_attr("IFLA_IFNAME"))
        return None

    def _call(self, method: str, *args: Any, **named: Any) -> Any:
        from pyroute2.iproute.linux import IPRoute  # type: ignore[import-untyped]  # 3-6 MB, only where network QoS is on
        from pyroute2.netlink.exceptions import NetlinkError  # type: ignore[import-untyped]

        try:
            if self._socket is None:
                self._socket = IPRoute(netns=self._netns) if self._netns else IPRoute()
            return list(getattr(self._socket, method)(*args, **named) or ())
        except NetlinkError as error:
            raise OSError(error.code, str(error.args[1]) if len(error.args) > 1 else "refused", method) from error
