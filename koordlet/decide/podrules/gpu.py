"""Which GPUs a container sees, and its share of one that is divided by HAMi-core. (spec/hooks 4.5)

Only a reply can carry this: it must be in the container's specification, or a reload of systemd takes it away again.
"""

from __future__ import annotations

from typing import Final

from koordlet.decide.podrules.context import PodContext
from koordlet.decide.podrules.wanted import Wanted
from koordlet.model.podevent import Hook, PodEvent
from koordlet.model.settings import GpuShare

_ANNOTATION: Final = "scheduling.koordinator.sh/device-allocated"
_HAMI: Final = "HAMi-core"
_LOCK: Final = "/tmp/vgpulock"
"""HAMi-core's lock directory, below the system's temporary directory."""


def rule(event: PodEvent, context: PodContext, wanted: Wanted) -> None:
    """Raises ValueError for an allocation that says too little; then nothing of it is injected: half of it would give
    a container a whole device."""
    pod = event.pod
    if event.container is None or event.hook is not Hook.PRE_CREATE_CONTAINER:
        return
    if fault := pod.settings.fault(_ANNOTATION):
        raise ValueError(fault)
    gpus = pod.settings.devices.gpus if pod.settings.devices else ()
    if not gpus:
        return
    env = {"NVIDIA_VISIBLE_DEVICES": ",".join(str(gpu.minor) for gpu in gpus)}
    if pod.settings.gpu_isolation == _HAMI and _is_divided(gpus[0]):
        env |= _share(gpus[0], event.env.get("LD_PRELOAD", ""), context.policy.hami_library)
        wanted.mounts += [(path, path, ("rbind",)) for path in (context.policy.hami_library, _LOCK)]
    wanted.env |= env
    wanted.note(f"gpus={env['NVIDIA_VISIBLE_DEVICES']}")


def _is_divided(gpu: GpuShare) -> bool:
    if gpu.memory_percent is None:
        raise ValueError(f"{_ANNOTATION}: gpu-memory-ratio is missing, and {_HAMI} needs it")
    if gpu.memory_percent < 100 and gpu.memory_bytes is None:
        raise ValueError(f"{_ANNOTATION}: gpu-memory is missing, and {_HAMI} needs it for a part of a device")
    return gpu.memory_percent < 100


def _share(gpu: GpuShare, preloaded: str, library: str) -> dict[str, str]:
    # beyond: a library that the container preloads itself stays (the reference replaces it)
    own = [path for path in preloaded.split(":") if path and path != library]
    env = {"CUDA_DEVICE_MEMORY_LIMIT": str(gpu.memory_bytes), "LD_PRELOAD": ":".join([library, *own])}
    if gpu.core_percent is not None:
        env["CUDA_DEVICE_SM_LIMIT"] = str(gpu.core_percent)
    return env
