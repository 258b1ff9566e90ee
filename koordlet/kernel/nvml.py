"""NVML, the NVIDIA driver's own interface, through nvidia-ml-py (extra `[gpu]`). Loaded only where the driver shows a
device, so that nobody else pays for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import structlog

from koordlet.kernel.host import Host

log = structlog.get_logger(__name__)

GPUS: Final = "driver/nvidia/gpus"
"""Below /proc; one directory per device while the driver is loaded."""


class Nvml:
    """The library, open or not; may be shared by threads. load: imports and returns the module `pynvml`.

    opened: how often so far; who keeps something of a session looks whether it is still the same. fault: why it is not
    open, "" where there is nothing to open.
    """

    def __init__(self, host: Host, load: Callable[[], Any] | None = None) -> None:
        self._host, self._load = host, load or _pynvml
        self._lock = threading.Lock()
        self._module: Any = None
        self.opened = 0
        self.fault = ""

    def open(self) -> Any:
        """The module, opened when it was not; None without a device, or with `fault` saying why."""
        with self._lock:
            if not self._present():
                self.fault = ""
                return None
            if self._module is None:
                try:
                    module = self._load()
                    module.nvmlInit()
                except Exception as error:  # the library's own errors are known only once it is loaded
                    self._failed(f"nvml: {error}")
                    return None
                self._module, self.fault = module, ""
                self.opened += 1
            return self._module

    def close(self) -> None:
        """Let go of it, so that the next `open` begins anew."""
        with self._lock:
            if self._module is not None:
                with suppress(Exception):
                    self._module.nvmlShutdown()
                self._module = None

    def _present(self) -> bool:
        try:
            return any((self._host.proc_root / GPUS).iterdir())
        except OSError:
            return False

    def _failed(self, fault: str) -> None:
        if fault != self.fault:
            self.fault = fault
            log.warning("gpu.no_nvml", error=fault, advice="install koordlet[gpu] and the driver's libraries")


def text(value: Any) -> str:
    """Older releases of nvidia-ml-py give bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _pynvml() -> Any:
    import pynvml

    return pynvml
