"""What memory QoS asks of one pod or container: pure arithmetic of spec/qos 8.2 and 8.3. Bytes."""

from __future__ import annotations

from typing import Final

from koordlet.model.memory_qos import RECOMMENDED, MemoryClass, MemoryClasses, MemoryPolicy, MemoryQos
from koordlet.model.pod import Container, Pod
from koordlet.model.qos import Qos
from koordlet.model.units import UNLIMITED

PAGE_BYTES: Final = 4096
_NOTHING: Final = MemoryQos()


def resolve(pod: Pod, classes: MemoryClasses) -> MemoryQos | None:
    """A pod's own fields over its policy's template over its class. None: nothing is asked, its files are not ours."""
    wish = pod.settings.memory_qos
    policy = wish.policy if wish is not None else MemoryPolicy.DEFAULT
    if policy is MemoryPolicy.NONE:
        return None
    name = "LSR" if pod.default_qos is Qos.LSE else pod.default_qos.value
    base = RECOMMENDED[name] if policy is MemoryPolicy.AUTO else _class(classes, name).qos
    found = base if wish is None else base.under(wish.qos)
    return None if found == _NOTHING else found


def class_of(classes: MemoryClasses, qos: Qos) -> MemoryClass:
    return _class(classes, "LSR" if qos is Qos.LSE else qos.value)


def _class(classes: MemoryClasses, name: str) -> MemoryClass:
    return {"LSR": classes.lsr, "LS": classes.ls, "BE": classes.be, "SYSTEM": classes.system}[name]


def request_bytes(pod: Pod, container: Container) -> int:
    """0 where it asks for nothing."""
    requests = container.requests
    return max((requests.batch_memory_bytes if pod.qos is Qos.BE else requests.memory_bytes) or 0, 0)


def limit_bytes(pod: Pod, container: Container) -> int:
    """-1 without a limit."""
    limits = container.limits
    found = (limits.batch_memory_bytes if pod.qos is Qos.BE else limits.memory_bytes) or 0
    return found if found > 0 else UNLIMITED


def pod_request_bytes(pod: Pod) -> int:
    return sum(request_bytes(pod, container) for container in pod.containers)


def pod_limit_bytes(pod: Pod) -> int:
    """-1 as soon as one container has none. beyond: the reference then sums up the others'."""
    limits = [limit_bytes(pod, container) for container in pod.containers]
    return sum(limits) if limits and all(limit > 0 for limit in limits) else UNLIMITED


def protected(request: int, qos: MemoryQos) -> tuple[int | None, int | None]:
    """(memory.min, memory.low); low is raised to min."""
    least = None if qos.min_percent is None else request * qos.min_percent // 100
    low = None if qos.low_percent is None else request * qos.low_percent // 100
    if low and least and low < least:
        low = least
    return least, low


def throttle_at(request: int, limit: int, node_bytes: int, qos: MemoryQos) -> int | None:
    """memory.high, -1 for "max"; None where nothing is asked or the node's memory is not known."""
    if qos.throttling_percent is None:
        return None
    if qos.throttling_percent == 0:
        return UNLIMITED
    upper = limit if limit > 0 else node_bytes
    if upper <= 0:
        return None
    high = (request + (upper - request) * qos.throttling_percent // 100) // PAGE_BYTES * PAGE_BYTES
    return max(high, protected(request, qos)[0] or 0, 0)


def page_cache(limit: int, qos: MemoryQos) -> tuple[int | None, int | None, int | None]:
    """(enable, size, sync) of the page cache limit, None where not to be written."""
    if qos.pagecache_bytes is not None:
        size: int | None = min(qos.pagecache_bytes, limit) if limit > 0 else qos.pagecache_bytes
    elif qos.pagecache_percent is not None and limit > 0:
        size = limit * qos.pagecache_percent // 100
    else:
        size = None
    enable = None if size is None else int(size > 0)
    sync = int(bool(qos.pagecache_sync)) if size else None
    if qos.pagecache_enable is not None:
        enable = int(qos.pagecache_enable)
    return enable, size, sync


def watermarks(limit: int, high: int | None, qos: MemoryQos) -> tuple[int, int] | None:
    """(reclaim from, reclaim down to) that the vendor's watermarks mean; None where off or unlimited."""
    base = min((value for value in (limit, high) if value is not None and value > 0), default=0)
    if not base or not qos.wmark_ratio:
        return None
    start = base * qos.wmark_ratio // 100
    stop = base * (qos.wmark_ratio * 10 - (qos.wmark_scale_permill or 0)) // 1000
    return start, max(stop, 0)
