"""RMIDs and counters. Counters stand still until a test sets them.

Rules, from fs/resctrl/monitor.c and Documentation/filesystems/resctrl.rst ("Resource alloc and monitor groups",
"max_threshold_occupancy - generic concepts"):
- A CTRL_MON group shows the sum of its own RMID and those of its MON groups; a failed read counts as nothing unless
  every read failed. So removing a MON group lowers its parent's counters.
- With SNC the file beside the mon_sub directories is the sum over the nodes of that cache, "Unavailable" if all fail.
- A freed RMID stays in limbo while any domain's llc_occupancy is not below max_threshold_occupancy; mkdir then says
  EBUSY instead of ENOSPC. The kernel looks once a second; here an RMID leaves as soon as its occupancy is low.
- A new group's bandwidth counters start at 0; its occupancy is whatever is left of the RMID's previous user.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable

from tests.labs.resctrl.shapes import Cache, Shape
from tests.labs.resctrl.text import number, strim

WORDS = {"Error": errno.EIO, "Unavailable": errno.EINVAL, "Unassigned": errno.ENOENT}
OCCUPANCY = "llc_occupancy"
DEFAULT_CONFIG = {"mbm_total_bytes": 0x7F, "mbm_local_bytes": 0x15}


class Monitor:
    """State of L3 monitoring; only made for machines that have it."""

    def __init__(self, shape: Shape) -> None:
        assert shape.monitoring is not None
        self.has = shape.monitoring
        self.domains = sorted(d for nodes in self.has.nodes.values() for d in nodes)
        self.free = deque(range(1, self.has.num_rmids))  # 0 is the default group's
        self.limbo: list[int] = []
        self.values: dict[tuple[int, int, str], int | str] = {}
        self.config = {(e, d): v for e, v in DEFAULT_CONFIG.items() for d in self.domains}
        self.blind: set[tuple[int, int]] = set()  # (rmid, domain) whose next bandwidth read is Unavailable
        self.limit_bytes = next((c.size_bytes for c in shape.resources if isinstance(c, Cache)), 32 << 20)
        self.threshold_bytes = self._rounded(self.limit_bytes // self.has.num_rmids)

    # RMIDs

    def alloc(self) -> int:
        """OSError ENOSPC without free RMIDs, EBUSY while some are in limbo. The least recently used is taken."""
        self.settle()
        if not self.free:
            raise OSError(errno.EBUSY if self.limbo else errno.ENOSPC, "RMID")
        rmid = self.free.popleft()
        for key in [k for k in self.values if k[0] == rmid and k[2] != OCCUPANCY]:
            del self.values[key]
        self.blind = {k for k in self.blind if k[0] != rmid}
        return rmid

    def release(self, rmid: int) -> None:
        if OCCUPANCY in self.has.events:
            self.limbo.append(rmid)
        else:
            self.free.append(rmid)
        self.settle()

    def settle(self) -> None:
        """What the kernel's limbo worker does each second."""
        for rmid in list(self.limbo):
            if all(self._clean(rmid, d) for d in self.domains):
                self.limbo.remove(rmid)
                self.free.append(rmid)

    def drain(self) -> None:
        """Other work has pushed the freed groups' lines out of the caches."""
        for rmid in self.limbo:
            for domain in self.domains:
                self.values.pop((rmid, domain, OCCUPANCY), None)
        self.settle()

    def _clean(self, rmid: int, domain: int) -> bool:
        value = self.values.get((rmid, domain, OCCUPANCY), 0)
        return isinstance(value, int) and value < self.threshold_bytes

    # counters

    def put(self, rmid: int, domain: int, event: str, value: int | str, add: bool = False) -> None:
        """Set (or add to) one counter; a word of WORDS makes reads of it fail that way."""
        if domain not in self.domains or event not in self.has.events:
            raise ValueError(f"no counter {event} in domain {domain}; domains {self.domains}, events {self.has.events}")
        if not isinstance(value, int) and value not in WORDS:
            raise ValueError(f"a counter is a number or one of {', '.join(WORDS)}, not {value!r}")
        before = self.values.get((rmid, domain, event), 0)
        if add and isinstance(value, int) and isinstance(before, int):
            value += before
        self.values[rmid, domain, event] = value
        if rmid in self.limbo:
            self.settle()

    def show(self, rmids: list[int], event: str, domain: int | None = None, cache: int | None = None) -> str:
        """Text of a mon_data file, of one domain or (SNC) of a cache. `rmids`: the group's own first, then its MONs."""
        total, failed, any_read = 0, 0, False
        for rmid in rmids:
            if domain is not None:
                value, error = self._read(rmid, domain, event)
            else:
                assert cache is not None
                parts = [self._read(rmid, d, event) for d in self.has.nodes[cache]]
                value = sum(v for v, bad in parts if not bad)
                error = 0 if any(not bad for _, bad in parts) else errno.EINVAL
            total, failed, any_read = total + value, error or failed, any_read or not error
        if any_read:
            return f"{total}\n"
        return next(word for word, code in WORDS.items() if code == failed) + "\n"

    def _read(self, rmid: int, domain: int, event: str) -> tuple[int, int]:
        if event != OCCUPANCY and (rmid, domain) in self.blind:
            self.blind.discard((rmid, domain))
            return 0, errno.EINVAL
        value = self.values.get((rmid, domain, event), 0)
        return (value, 0) if isinstance(value, int) else (0, WORDS[value])

    # info/L3_MON

    def features(self) -> str:
        rows = []
        for event in self.has.events:
            rows.append(event)
            if self.has.configurable and event in DEFAULT_CONFIG:
                rows.append(f"{event}_config")
        return "".join(f"{r}\n" for r in rows)

    def threshold_write(self, text: str) -> None:
        """max_threshold_occupancy, bytes: EINVAL for no number or more than the cache; rounded down."""
        try:
            value = number(text, 0, 32)
        except ValueError:
            raise OSError(errno.EINVAL, text) from None
        if value > self.limit_bytes:
            raise OSError(errno.EINVAL, text)
        self.threshold_bytes = self._rounded(value)
        self.settle()

    def _rounded(self, value: int) -> int:
        return value // self.has.scale_bytes * self.has.scale_bytes

    def config_show(self, event: str) -> str:
        return ";".join(f"{d}=0x{self.config[event, d]:02x}" for d in self.domains) + "\n"

    def config_write(self, event: str, text: str, say: Callable[[str], None]) -> None:
        """mbm_*_bytes_config: domains are applied one by one, so those before a bad one stay changed.

        A change clears both events of the domain; the next read of every RMID there is Unavailable.
        """
        for part in text.split(";"):
            if not part:
                return
            label, _, value_text = strim(part).partition("=")
            try:
                domain = number(label)
            except ValueError:
                say("Missing '=' or non-numeric domain id\n")
                raise OSError(errno.EINVAL, part) from None
            try:
                value = number(value_text, 16)
            except ValueError:
                say("Non-numeric event configuration value\n")
                raise OSError(errno.EINVAL, part) from None
            if value & ~0x7F:
                say("Invalid event configuration: max valid mask is 0x7f\n")
                raise OSError(errno.EINVAL, part)
            if domain not in self.domains:
                raise OSError(errno.EINVAL, part)
            if self.config[event, domain] != value:
                self.config[event, domain] = value
                for key in [k for k in self.values if k[1] == domain and k[2] != OCCUPANCY]:
                    del self.values[key]
                self.blind.update((rmid, domain) for rmid in range(self.has.num_rmids))
