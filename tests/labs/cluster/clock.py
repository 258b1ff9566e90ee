"""A wall clock that a test can step, for one process alone.

Time namespaces have no wall clock, and stepping the machine's would step everybody's. libfaketime 0.9.10 (Debian 12) is
no help: with the monotonic clock left alone it makes each absolute clock_nanosleep(2) fail with EINVAL, and so
time.sleep.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


def missing() -> str | None:
    """Why there is none here, or None."""
    return (
        None if shutil.which("cc") else "no C compiler for a clock that can be stepped (apt-get install gcc libc6-dev)"
    )


class Clock:
    """`environment` is for the process whose clock it is."""

    def __init__(self, folder: Path) -> None:
        library, self._file = folder / "clock.so", folder / "clock"
        if not library.exists():
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, SOURCE], check=True)
        self.step(0)
        self.environment = {"LD_PRELOAD": str(library), "LAB_CLOCK": str(self._file)}

    def step(self, off_s: int) -> None:
        """From now on it is off by so much from the true time. (One aligned word: never seen half written.)"""
        with self._file.open("r+b" if self._file.exists() else "wb", buffering=0) as file:
            file.write(struct.pack("l", off_s))
