"""Flags of the runtime's doors (spec/api 4.1): the hook server of koord-runtime-proxy and the NRI plugin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from koordlet.config.errors import UsageError
from koordlet.model.podevent import Hook

PROXY_GATES: Final[dict[Hook, frozenset[str]]] = {
    Hook.PRE_RUN_POD_SANDBOX: frozenset(
        {"BatchResource", "CPUNormalization", "CPUSetAllocator", "GroupIdentity", "Resctrl"}
    ),
    Hook.PRE_CREATE_CONTAINER: frozenset(
        {"BatchResource", "CPUNormalization", "CPUSetAllocator", "Resctrl", "GPUEnvInject", "RDMADeviceInject"}
    ),
    Hook.PRE_UPDATE_CONTAINER: frozenset({"BatchResource", "CPUNormalization", "CPUSetAllocator"}),
}
"""Stages that koord-runtime-proxy is asked to call, and the gates of which one must be on."""
_KNOWN_STAGES: Final[dict[str, Hook | None]] = {
    "PreRemoveRunPodSandbox": None,  # the reference's, never called
    **{hook.value: hook for hook in Hook if hook is not Hook.RECONCILE},
}
MAX_SOCKET_PATH: Final = 107


@dataclass(frozen=True, slots=True)
class HookFlags:
    """addr: of the gRPC door, "" keeps it shut. nri_socket: None keeps NRI off. disabled: stages left out.
    fail: a hook's failure becomes the pod's."""

    addr: str
    host_endpoint: str
    config_dir: Path
    failure_policy: str
    fail: bool
    disabled: frozenset[Hook]
    nri_socket: Path | None
    nri_name: str
    nri_index: str
    nri_settled_s: float
    nri_backoff_s: float
    nri_backoff_cap_s: float
    nri_backoff_steps: int
    nri_backoff_factor: float
    runtime: str

    def proxy_stages(self, gates: frozenset[str]) -> tuple[str, ...]:
        """What `koordlet.json` names: stages that some hook serves and that are not disabled."""
        return tuple(hook.value for hook, wanted in PROXY_GATES.items() if wanted & gates and hook not in self.disabled)


class Values(Protocol):
    """Typed access to the flags' values, as config.flags has it."""

    def text(self, name: str) -> str: ...
    def switch(self, name: str) -> bool: ...
    def number(self, name: str, high: int = ...) -> int: ...
    def seconds(self, name: str) -> float: ...
    def decimal(self, name: str) -> float: ...
    def path(self, name: str) -> Path: ...


def read_hook_flags(read: Values) -> HookFlags:
    """Raises UsageError."""
    addr = read.text("runtime-hooks-addr")
    if len(addr.encode()) > MAX_SOCKET_PATH:
        raise UsageError(f"flag -runtime-hooks-addr: a socket's path has {MAX_SOCKET_PATH} bytes at most")
    name, index = read.text("runtime-hooks-nri-plugin-name"), read.text("runtime-hooks-nri-plugin-index")
    if not name or not all(c.isascii() and (c.isalnum() or c in "._+-") for c in name):
        raise UsageError(f"flag -runtime-hooks-nri-plugin-name: {name[:80]!r}, expected letters, digits and ._+-")
    if not (len(index) == 2 and index.isascii() and index.isdigit()):
        raise UsageError(f"flag -runtime-hooks-nri-plugin-index: {index[:80]!r}, expected two digits")
    nri = read.path("var-run-root-dir") / read.path("runtime-hooks-nri-socket-path")
    return HookFlags(
        addr=addr,
        host_endpoint=read.text("runtime-hooks-host-endpoint"),
        config_dir=read.path("runtime-hooks-config-path"),
        failure_policy=read.text("runtime-hooks-failure-policy"),
        fail=read.text("runtime-hooks-plugin-failure-policy") == "Fail",
        disabled=_stages(read.text("runtime-hooks-disable-stages")),
        nri_socket=nri if read.switch("enable-nri-runtime-hook") else None,
        nri_name=name,
        nri_index=index,
        nri_settled_s=read.seconds("runtime-hooks-nri-connect-timeout"),
        nri_backoff_s=read.seconds("runtime-hooks-nri-backoff-duration"),
        nri_backoff_cap_s=read.seconds("runtime-hooks-nri-backoff-cap"),
        nri_backoff_steps=read.number("runtime-hooks-nri-backoff-steps"),
        nri_backoff_factor=read.decimal("runtime-hooks-nri-backoff-factor"),
        runtime=read.text("default-runtime-type"),
    )


def _stages(text: str) -> frozenset[Hook]:
    found = set()
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in _KNOWN_STAGES:
            known = " ".join(sorted(_KNOWN_STAGES))
            raise UsageError(f"flag -runtime-hooks-disable-stages: no stage {name[:80]!r}; there are {known}")
        found.add(_KNOWN_STAGES[name])
    return frozenset(hook for hook in found if hook is not None)
