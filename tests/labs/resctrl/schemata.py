"""The schemata of all groups: parsing, checking, applying, showing.

Rules, from fs/resctrl/ctrlmondata.c and rdtgroup.c, Documentation/filesystems/resctrl.rst ("Schemata files - general
concepts", "Reading/writing the schemata file"):
- A write is parsed whole before anything is applied: one bad line and nothing changes. The exception is MB under
  mba_MBps since v6.1: its values take effect while parsing, so those before the bad line stay.
- Blanks are allowed before a resource's name and around a value, not around a domain id. A trailing ";" is fine.
- An unknown domain id fails with EINVAL and no text: last_cmd_status says "ok".
- Bandwidth is rounded up to a multiple of bandwidth_gran.
- Overlap with exclusive groups is checked against what is in force, not against the lines before.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.labs.resctrl.shapes import UNLIMITED_MBPS, Bandwidth, Cache
from tests.labs.resctrl.text import number, strim

if TYPE_CHECKING:
    from tests.labs.resctrl.model import Group, Machine


@dataclass(frozen=True)
class Region:
    """A pseudo-locked part of one cache."""

    group: Group
    schema: Schema
    domain: int
    mask: int


class Schema:
    """One line: a resource, or with CDP its code or data half. `values`: domain -> CLOSID -> value."""

    def __init__(self, resource: Cache | Bandwidth, half: str = "") -> None:
        self.resource = resource
        self.half = half
        self.name = resource.name + half
        self.num_closids = resource.num_closids // 2 if half else resource.num_closids
        self.mbps = isinstance(resource, Bandwidth) and resource.mbps
        first = UNLIMITED_MBPS if self.mbps else resource.full
        self.values = {d: dict.fromkeys(range(self.num_closids), first) for d in resource.ids}
        self.peers = [self]  # halves of the same cache, itself included


class Schemata:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        shape = machine.shape
        self.lines: list[Schema] = []
        for resource in reversed(shape.resources) if shape.era.newest_first else shape.resources:
            halves = ("DATA", "CODE") if isinstance(resource, Cache) and resource.cdp else ("",)
            made = [Schema(resource, half) for half in halves]
            for schema in made:
                schema.peers = made
            self.lines += made
        self.num_closids = min((s.num_closids for s in self.lines), default=1)
        self.regions: dict[tuple[str, int], Region] = {}
        # Unused CDP halves count for the width, so that the columns are the same with and without CDP.
        self.name_width = max(
            (
                len(s.name) + 4 * (isinstance(s.resource, Cache) and s.resource.cdp_capable and not s.half)
                for s in self.lines
            ),
            default=0,
        )
        widths = [
            -(-s.resource.cbm_len // 4) if isinstance(s.resource, Cache) else 3 if s.resource.linear else 4
            for s in self.lines
        ]
        self.width = max(widths, default=0) if shape.era.padded else 0

    # write

    def write(self, group: Group, text: str) -> None:
        """rdtgroup_schemata_write()."""
        status = self.machine.status
        if not text.endswith("\n"):
            raise OSError(errno.EINVAL, "no newline")
        status.clear()
        if group.mode == "pseudo-locked":
            raise status.fail(errno.EINVAL, "Resource group is pseudo-locked\n")
        staged: dict[tuple[Schema, int], int] = {}
        for line in text[:-1].split("\n"):
            label, colon, rest = line.partition(":")
            name = strim(label)
            if not colon:
                raise status.fail(errno.EINVAL, "Missing ':'\n")
            if not rest:
                raise status.fail(errno.EINVAL, f"Missing '{name}' value\n")
            schema = next((s for s in self.lines if s.name == name and group.closid < s.num_closids), None)
            if schema is None:
                raise status.fail(errno.EINVAL, f"Unknown or unsupported resource name '{name}'\n")
            self._parse_line(group, schema, rest, staged)
        for (schema, domain), value in staged.items():
            schema.values[domain][group.closid] = value
        if group.mode == "pseudo-locksetup":
            for (schema, domain), value in staged.items():
                self.regions[schema.resource.name, domain] = Region(group, schema, domain, value)
            self.machine.locked(group)

    def _parse_line(self, group: Group, schema: Schema, rest: str, staged: dict[tuple[Schema, int], int]) -> None:
        status = self.machine.status
        if group.mode == "pseudo-locksetup" and isinstance(schema.resource, Bandwidth):
            raise status.fail(errno.EINVAL, "Cannot pseudo-lock MBA resource\n")
        while rest:
            part, _, rest = rest.partition(";")
            label, equals, value_text = part.partition("=")
            try:
                if not equals:
                    raise ValueError(part)
                domain = number(label)
            except ValueError:
                raise status.fail(errno.EINVAL, "Missing '=' or non-numeric domain\n") from None
            if domain not in schema.values:
                raise OSError(errno.EINVAL, f"no domain {domain}")
            if (schema, domain) in staged:
                raise status.fail(errno.EINVAL, f"Duplicate domain {domain}\n")
            if isinstance(schema.resource, Cache):
                staged[schema, domain] = self._mask(group, schema, domain, strim(value_text))
                if group.mode == "pseudo-locksetup":
                    return  # one region per group: the rest of the line is not even read
                continue
            value = self._bandwidth(schema.resource, strim(value_text))
            if schema.mbps and self.machine.shape.era.mbps_at_once:
                schema.values[domain][group.closid] = value
            else:
                staged[schema, domain] = value

    def _mask(self, group: Group, schema: Schema, domain: int, text: str) -> int:
        """parse_cbm() and cbm_validate()."""
        fail, cache = self.machine.status.fail, schema.resource
        assert isinstance(cache, Cache)
        if group.mode == "pseudo-locksetup" and any(d == domain for _, d in self.regions):
            raise fail(errno.EINVAL, "Pseudo-locked region in hierarchy\n")
        try:
            value = number(text, 16)
        except ValueError:
            raise fail(errno.EINVAL, f"Non-hex character in the mask {text}\n") from None
        if (cache.min_cbm_bits > 0 and value == 0) or value > cache.full:
            raise fail(errno.EINVAL, "Mask out of range\n")
        first_run = lowest_run(value)
        if value != first_run and not cache.sparse:
            raise fail(errno.EINVAL, f"The mask {value:x} has non-consecutive 1-bits\n")
        if first_run.bit_count() < cache.min_cbm_bits:
            raise fail(errno.EINVAL, f"Need at least {cache.min_cbm_bits} bits in the mask\n")
        region = self.regions.get((cache.name, domain))
        if group.mode in ("exclusive", "shareable") and region and region.mask & value:
            raise fail(errno.EINVAL, "CBM overlaps with pseudo-locked region\n")
        if self._overlaps(schema, domain, value, group.closid, exclusive_only=True):
            raise fail(errno.EINVAL, "Overlaps with exclusive group\n")
        if group.mode != "shareable" and self._overlaps(schema, domain, value, group.closid):
            raise fail(errno.EINVAL, "Overlaps with other group\n")
        return value

    def _bandwidth(self, resource: Bandwidth, text: str) -> int:
        """bw_validate()."""
        fail = self.machine.status.fail
        try:
            value = number(text, 10, 32)
        except ValueError:
            raise fail(errno.EINVAL, f"Invalid MB value {text}\n") from None
        if resource.mbps and self.machine.shape.era.mbps_at_once:
            return value
        if not resource.mbps and not resource.min_bw <= value <= resource.max_bw:
            limits = f"[{resource.min_bw},{resource.max_bw}]"
            raise fail(errno.EINVAL, f"MB value {value} out of range {limits}\n")
        return -(-value // resource.gran) * resource.gran

    # exclusive groups and new groups

    def _overlaps(self, schema: Schema, domain: int, mask: int, closid: int, exclusive_only: bool = False) -> bool:
        """rdtgroup_cbm_overlaps(): with the other half of a CDP cache too, and with the hardware's shareable bits."""
        cache = schema.resource
        if not exclusive_only and isinstance(cache, Cache) and cache.shareable_bits & mask:
            return True
        return any(
            other.closid != closid
            and other.mode in (("exclusive",) if exclusive_only else ("exclusive", "shareable"))
            and peer.values[domain][other.closid] & mask
            for other in self.machine.groups
            for peer in schema.peers
        )

    def check_exclusive(self, group: Group) -> None:
        """rdtgroup_mode_test_exclusive()."""
        caches = [s for s in self.lines if isinstance(s.resource, Cache)]
        for schema in caches:
            for domain, values in schema.values.items():
                if self._overlaps(schema, domain, values[group.closid], group.closid):
                    raise self.machine.status.fail(errno.EINVAL, "Schemata overlaps\n")
        if not caches:
            raise self.machine.status.fail(errno.EINVAL, "Cannot be exclusive without CAT/CDP\n")

    def init_group(self, group: Group) -> None:
        """rdtgroup_init_alloc(): a new group gets all bits that are shareable or unused, the first run of them."""
        for schema in self.lines:
            if isinstance(schema.resource, Bandwidth):
                first = UNLIMITED_MBPS if schema.mbps else schema.resource.full
                for values in schema.values.values():
                    values[group.closid] = first
                continue
            for domain, mask in {d: self._usable(schema, d) for d in schema.values}.items():
                if mask.bit_count() < schema.resource.min_cbm_bits:
                    raise self.machine.status.fail(errno.ENOSPC, f"No space on {schema.name}:{domain}\n")
                schema.values[domain][group.closid] = mask

    def _usable(self, schema: Schema, domain: int) -> int:
        cache = schema.resource
        assert isinstance(cache, Cache)
        usable = used = cache.shareable_bits
        for other in self.machine.groups:
            if other.locking:
                continue
            theirs = 0
            for peer in schema.peers:
                theirs |= peer.values[domain][other.closid]
            used |= theirs
            if other.mode == "shareable":
                usable |= theirs
        region = self.regions.get((cache.name, domain))
        used |= region.mask if region else 0
        return lowest_run(usable | cache.full & ~used)

    # show

    def show(self, group: Group) -> str:
        """rdtgroup_schemata_show()."""
        if group.mode == "pseudo-locksetup":
            return "".join(f"{s.name}:uninitialized\n" for s in self.lines)
        if group.mode == "pseudo-locked":
            return "".join(f"{r.schema.name}:{r.domain}={r.mask:x}\n" for r in self._regions_of(group))
        rows = []
        for schema in self.lines:
            kind = f"0{self.width}x" if isinstance(schema.resource, Cache) else f"{self.width or ''}d"
            cells = (f"{d}={values[group.closid]:{kind}}" for d, values in schema.values.items())
            rows.append(f"{schema.name:>{self.name_width}}:{';'.join(cells)}\n")
        return "".join(rows)

    def show_size(self, group: Group) -> str:
        """rdtgroup_size_show(): bytes of caches, bandwidth as in the schemata."""
        rows = []
        if group.mode == "pseudo-locked":
            for r in self._regions_of(group):
                return f"{r.schema.name:>{self.name_width}}:{r.domain}={_bytes(r.schema.resource, r.mask)}\n"
        for schema in self.lines:
            cells = (
                f"{d}={0 if group.locking else _bytes(schema.resource, values[group.closid])}"
                for d, values in schema.values.items()
            )
            rows.append(f"{schema.name:>{self.name_width}}:{';'.join(cells)}\n")
        return "".join(rows)

    def show_bit_usage(self, schema: Schema) -> str:
        """rdt_bit_usage_show(): per bit X H S E P or 0, the highest first."""
        cache = schema.resource
        assert isinstance(cache, Cache)
        cells = []
        for domain, values in schema.values.items():
            shared = exclusive = 0
            for group in self.machine.groups:
                shared |= values[group.closid] if group.mode == "shareable" else 0
                exclusive |= values[group.closid] if group.mode == "exclusive" else 0
            region = self.regions.get((cache.name, domain))
            letters = ""
            for bit in (1 << n for n in reversed(range(cache.cbm_len))):
                if cache.shareable_bits & bit:
                    letters += "X" if shared & bit else "H"
                elif shared & bit:
                    letters += "S"
                else:
                    letters += "E" if exclusive & bit else "P" if region and region.mask & bit else "0"
            cells.append(f"{domain}={letters}")
        return ";".join(cells) + "\n"

    def _regions_of(self, group: Group) -> list[Region]:
        return [r for r in self.regions.values() if r.group is group]


def lowest_run(mask: int) -> int:
    """cbm_ensure_valid(): the lowest run of ones of a mask."""
    low = mask & -mask
    return mask & ~(mask + low) if mask else 0


def _bytes(resource: Cache | Bandwidth, value: int) -> int:
    if isinstance(resource, Bandwidth):
        return value
    return resource.size_bytes // resource.cbm_len * value.bit_count()
