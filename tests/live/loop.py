"""A real block device of bounded size, for tests that read and write one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def loop_device(size: int) -> Iterator[str]:
    """A block device of that size on a file in memory, or a skip with the reason."""
    store = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp") / f"koordlet-loop-{os.getpid()}"
    try:
        with store.open("wb") as file:
            file.truncate(size)
            os.posix_fallocate(file.fileno(), 0, size)
        made = subprocess.run(["losetup", "-f", "--show", str(store)], capture_output=True, text=True, timeout=30)
        if made.returncode:
            pytest.skip(f"no loop device here: {made.stderr.strip()}")
        device = made.stdout.strip()
        try:
            yield device
        finally:
            subprocess.run(["losetup", "-d", device], check=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("losetup is not installed")
    finally:
        store.unlink(missing_ok=True)
