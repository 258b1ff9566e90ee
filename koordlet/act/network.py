"""Network classes and limits of pods: HTB trees on the node's egress device and on the devices that lead to pods.

A pod's packets are known by its IPv4 address: as source where they leave the node, as destination where they enter the
pod. So both directions are shaped, without entering the pod's namespace. Known limits: a packet whose source was
rewritten or that was wrapped before it leaves is the system class's, and so are those of pods on the host's network.

A device with somebody else's qdisc is left alone. What a former agent left is removed and built anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Protocol

from koordlet.act.attributes import Attributes
from koordlet.kernel.net import HtbClass, NetDevice, TrafficControl
from koordlet.model.effect import Effect, EffectReport
from koordlet.model.podeffects import NetworkClass, PodNetwork

LOOK_S: Final = 10.0
"""Routes and foreign qdiscs are looked at again this often."""
_OFF: Final = EffectReport(until_s=math.inf)
_ROOT: Final = 1
_MINOR: Final = {"system": 2, "ls": 3, "be": 4}
_PRIO: Final = {"system": 1, "ls": 2, "be": 3}
_FIRST_POD: Final = 0x10
_LAST_POD: Final = 0xFFEF
_FIRST_PREFERENCE: Final = 100
_LAST_PREFERENCE: Final = 60_000

Match = tuple[str, str]
"""(address, "src" or "dst")"""


@dataclass(slots=True)
class Tree:
    """What is, or should be, on one device."""

    default: int = 0
    classes: dict[int, HtbClass] = field(default_factory=dict)
    filters: dict[Match, int] = field(default_factory=dict)
    preferences: dict[Match, int] = field(default_factory=dict)


class Control(Protocol):
    """The kernel's side (kernel/net.TrafficControl)."""

    def default_device(self) -> NetDevice | None: ...
    def device_to(self, ip: str) -> NetDevice | None: ...
    def taken(self, device: NetDevice) -> str: ...
    def is_ours(self, device: NetDevice) -> bool: ...
    def begin(self, device: NetDevice, default: int) -> None: ...
    def end(self, device: NetDevice) -> None: ...
    def set_class(self, device: NetDevice, made: HtbClass, *, new: bool) -> None: ...
    def delete_class(self, device: NetDevice, minor: int) -> None: ...
    def add_filter(self, device: NetDevice, preference: int, ip: str, end: str, minor: int) -> None: ...
    def delete_filter(self, device: NetDevice, preference: int) -> None: ...
    def close(self) -> None: ...


class Network:
    """The applier. observe: nothing is changed."""

    kind = NetworkClass.kind

    def __init__(self, attributes: Attributes, *, observe: bool = False, control: Control | None = None) -> None:
        self._attributes, self._observe = attributes, observe
        self._control: Control = control or TrafficControl()
        self._effects: tuple[Effect, ...] = ()
        self._trees: dict[NetDevice, Tree] = {}
        self._minors: dict[str, int] = {}
        self._due_s = float("-inf")
        self._report = EffectReport()

    def apply(self, effects: tuple[Effect, ...], now_s: float) -> EffectReport:
        if effects == self._effects and now_s < self._due_s:
            return self._report
        if not effects and not self._trees and not self._attributes.of(self.kind):
            return _OFF  # no socket is opened
        self._effects, self._due_s = effects, now_s + LOOK_S
        errors: list[str] = []
        done = undone = 0
        try:
            wanted = self._wanted(effects, errors)
            undone = self._leave(set(wanted), errors)
        except OSError as error:
            errors.append(f"network: {error}")
            wanted = {}
        for device, tree in wanted.items() if not self._observe else ():
            try:
                done += self._bring(device, tree)
            except OSError as error:
                errors.append(f"{device.name}: {error.filename}: {error.strerror}")
                self._trees.pop(device, None)  # looked at anew in the next round
        state = {
            device.name: f"{len(tree.classes)} classes, {len(tree.filters)} filters"
            for device, tree in self._trees.items()
        }
        self._report = EffectReport(done, undone, len(errors), state, tuple(errors), self._due_s)
        return self._report

    def restore_all(self, now_s: float, why: str) -> None:
        if self._trees or self._attributes.of(self.kind):
            self._leave(set(), [])
        self._control.close()
        self._effects, self._due_s = (), float("-inf")

    # what should be

    def _wanted(self, effects: tuple[Effect, ...], errors: list[str]) -> dict[NetDevice, Tree]:
        trees: dict[NetDevice, Tree] = {}
        classes = {effect.target: effect for effect in effects if isinstance(effect, NetworkClass)}
        pods = [effect for effect in effects if isinstance(effect, PodNetwork)]
        self._number(pods)
        out = self._control.default_device() if effects else None
        if out is not None and (classes or any(pod.egress_bps for pod in pods)):
            trees[out] = _egress(classes, pods, self._minors)
        elif effects and out is None:
            errors.append("no default IPv4 route: egress is not shaped")
        for pod in pods:
            for ip in pod.ips if pod.ingress_bps else ():
                device = self._control.device_to(ip)
                if device is None or device == out or device.name == "lo":
                    errors.append(f"{ip}: no device of its own leads to this pod: its ingress is not shaped")
                    continue
                _add(trees.setdefault(device, Tree()), 0, self._minors[pod.target], pod.ingress_bps or 0, pod.parent)
                trees[device].filters[ip, "dst"] = self._minors[pod.target]
        return {device: tree for device, tree in trees.items() if not self._refused(device, errors)}

    def _refused(self, device: NetDevice, errors: list[str]) -> bool:
        kind = self._control.taken(device)
        if kind:
            errors.append(f"{device.name}: has a {kind} qdisc of somebody else, left alone")
        return bool(kind)

    def _number(self, pods: list[PodNetwork]) -> None:
        """A class number per pod, kept while the pod is there."""
        limited = [pod.target for pod in pods if pod.egress_bps or pod.ingress_bps]
        self._minors = {uid: minor for uid, minor in self._minors.items() if uid in set(limited)}
        taken = set(self._minors.values())
        free = (minor for minor in range(_FIRST_POD, _LAST_POD + 1) if minor not in taken)
        for uid in limited:
            if uid not in self._minors:
                self._minors[uid] = next(free)

    # what is

    def _bring(self, device: NetDevice, wanted: Tree) -> int:
        """The difference only. Classes come before the filters that name them, and go after them."""
        tree = self._trees.get(device)
        done = 0
        if tree is None or tree.default != wanted.default or not self._control.is_ours(device):
            self._attributes.add(self.kind, {device.name: device.index})
            self._control.begin(device, wanted.default)
            tree = self._trees[device] = Tree(wanted.default)
            done += 1
        for minor, made in wanted.classes.items():
            if tree.classes.get(minor) != made:
                self._control.set_class(device, made, new=minor not in tree.classes)
                tree.classes[minor] = made
                done += 1
        for match in [match for match, minor in tree.filters.items() if wanted.filters.get(match) != minor]:
            self._control.delete_filter(device, tree.preferences.pop(match))
            del tree.filters[match]
            done += 1
        taken = set(tree.preferences.values())
        free = (number for number in range(_FIRST_PREFERENCE, _LAST_PREFERENCE) if number not in taken)
        for match, minor in wanted.filters.items():
            if match not in tree.filters:
                preference = next(free)
                self._control.add_filter(device, preference, *match, minor)
                tree.filters[match], tree.preferences[match] = minor, preference
                done += 1
        for minor in [minor for minor in tree.classes if minor not in wanted.classes]:
            self._control.delete_class(device, minor)
            del tree.classes[minor]
            done += 1
        return done

    def _leave(self, wanted: set[NetDevice], errors: list[str]) -> int:
        """Devices that we shaped, this agent or a former one, and that nobody wants shaped any more."""
        known = {NetDevice(int(index), name) for name, index in self._attributes.of(self.kind).items()}
        undone = 0
        for device in (known | set(self._trees)) - wanted if not self._observe else ():
            try:
                self._control.end(device)
                undone += 1
            except OSError as error:
                errors.append(f"{device.name}: {error.strerror}")
                continue
            self._trees.pop(device, None)
            self._attributes.drop(self.kind, {device.name})
        return undone


def _egress(classes: dict[str, NetworkClass], pods: list[PodNetwork], minors: dict[str, int]) -> Tree:
    """Without classes of the node, only limited pods are shaped and everything else passes at once."""
    tree = Tree(default=_MINOR["system"] if classes else 0)
    if classes:
        root = classes["root"]
        tree.classes[_ROOT] = HtbClass(_ROOT, 0, root.rate_bps, root.ceil_bps)
        for name, minor in _MINOR.items():
            made = classes[name]
            tree.classes[minor] = HtbClass(minor, _ROOT, made.rate_bps, made.ceil_bps, _PRIO[name])
    for pod in pods:
        if pod.egress_bps:
            _add(tree, _ROOT if classes else 0, minors[pod.target], pod.egress_bps, pod.parent)
        minor = minors[pod.target] if pod.egress_bps else _MINOR[pod.parent] if classes else 0
        if minor:
            tree.filters.update({(ip, "src"): minor for ip in pod.ips})
    return tree


def _add(tree: Tree, parent: int, minor: int, limit_bps: int, name: str) -> None:
    tree.classes[minor] = HtbClass(minor, parent, limit_bps, limit_bps, _PRIO[name])
