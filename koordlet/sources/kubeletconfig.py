"""A kubelet's `GET /configz` answer -> `KubeletConfig`. Unknown and reshaped fields are none of our business."""

from __future__ import annotations

from typing import Final

import msgspec

from koordlet.model.cpuset import CpuSet
from koordlet.model.kubelet import KubeletConfig
from koordlet.model.quantity import parse_mcpu


class KubeletConfigError(Exception):
    """The bytes are not a kubelet's configuration; nothing of them was taken."""


def decode_configz(data: bytes) -> KubeletConfig:
    """Raises KubeletConfigError naming the key and the value."""
    try:
        found = _DECODER.decode(data).kubeletconfig
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise KubeletConfigError(f"/configz: {error}") from error
    reserved_mcpu = 0
    for key, amounts in (("kubeReserved", found.kube_reserved), ("systemReserved", found.system_reserved)):
        text = (amounts or {}).get("cpu")
        try:
            reserved_mcpu += max(parse_mcpu(text), 0) if text else 0
        except (ValueError, ArithmeticError) as error:
            raise KubeletConfigError(f"/configz: {key}.cpu: {error}") from error
    try:
        reserved = CpuSet.parse(found.reserved_system_cpus or "")
    except ValueError as error:
        raise KubeletConfigError(f"/configz: reservedSystemCPUs: {error}") from error
    return KubeletConfig(
        cpu_policy=found.cpu_manager_policy or "none",
        cpu_options=tuple(sorted((found.cpu_manager_policy_options or {}).items())),
        reserved_cpus=reserved,
        reserved_mcpu=reserved_mcpu,
        topology_policy=found.topology_manager_policy or "none",
        topology_scope=found.topology_manager_scope or "container",
    )


class _Config(msgspec.Struct, rename="camel", gc=False):
    cpu_manager_policy: str | None = None
    cpu_manager_policy_options: dict[str, str] | None = None
    reserved_system_cpus: str | None = msgspec.field(default=None, name="reservedSystemCPUs")
    kube_reserved: dict[str, str] | None = None
    system_reserved: dict[str, str] | None = None
    topology_manager_policy: str | None = None
    topology_manager_scope: str | None = None


class _Answer(msgspec.Struct, gc=False):
    # Required: an error page that happens to be JSON must not pass as a configuration.
    kubeletconfig: _Config


_DECODER: Final = msgspec.json.Decoder(_Answer)
