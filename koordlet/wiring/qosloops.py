"""CPU burst and the memory, block I/O and system reconcilers: their intervals and what they need of the sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from koordlet.config.flags import Flags
from koordlet.decide import blkio, burst, burst_plan, memory_qos, system
from koordlet.kernel.host import Host
from koordlet.loops import Engine
from koordlet.model.blkio import BlockDevices
from koordlet.model.pod import PodSet
from koordlet.model.view import Policy
from koordlet.parts import NO_BLOCKS

if TYPE_CHECKING:
    from koordlet.sense.blocks import Claims

NAMES: Final = (burst_plan.NAME, memory_qos.NAME, blkio.NAME, system.NAME)


def intervals_s(flags: Flags) -> dict[str, float]:
    return dict.fromkeys(NAMES, flags.reconcile_interval_s)


class ThrottlingWanted:
    """Whether a pass should read the throttling of every limited container: somebody's quota may burst."""

    def __init__(self, policy: Callable[[], Policy], engine: Callable[[], Engine]) -> None:
        self._policy, self._engine = policy, engine
        self._asked: tuple[int, bool] = (-1, False)

    def __call__(self) -> bool:
        policy = self._policy()
        if policy.slo is None or burst.GATE not in policy.gates:
            return False
        return policy.slo.burst.policy.quota or self._pods_ask()

    def _pods_ask(self) -> bool:
        snapshot = self._engine().snapshot
        pods = snapshot.view.pods if snapshot is not None else PodSet()
        if pods.revision != self._asked[0]:
            wishes = (pod.settings.cpu_burst for pod in pods.pods)
            asked = any(wish is not None and wish.policy is not None and wish.policy.quota for wish in wishes)
            self._asked = (pods.revision, asked)
        return self._asked[1]


def blocks(
    host: Host, claims: Claims | None, count: Callable[[str, bool], None]
) -> Callable[[PodSet, Policy, float], BlockDevices]:
    """The disks that policy and pods name, looked up while the gate is on. claims: of a cluster. count: told of each
    look at the machine's disks, and whether it was possible."""
    from koordlet.sense.blocks import BlockFinder  # the gate is off by default

    finder = BlockFinder(host, claims, lambda ok: count("local_storage_info", ok))

    def poll(pods: PodSet, policy: Policy, now_s: float) -> BlockDevices:
        if policy.slo is None or blkio.GATE not in policy.gates:
            return NO_BLOCKS
        return finder.poll(pods, policy.slo.blkio, now_s)

    return poll
