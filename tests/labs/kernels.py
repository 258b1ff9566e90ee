"""A kernel of our own for the kernel lab, where no packaged one has what a test needs.

Debian builds all its kernels without CONFIG_SCHED_CORE (6.1 and 6.12, amd64, cloud and rt alike), so core scheduling is
tried on one made from Debian's sources, with kernel.config and nothing else: no modules, a few minutes to build. It
lies in the cache of binaries.py. `make lab-kernel` builds it, and so does `.ci/run`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.labs.binaries import BuildError, kept, made

SOURCE = Path("/usr/src/linux-source-6.1.tar.xz")
CONFIG = Path(__file__).with_name("kernel.config")
NAME = "kernel-core-sched"
PACKAGES = "linux-source-6.1 bc flex bison libelf-dev xz-utils"
LACKS = "Debian's kernels are built without CONFIG_SCHED_CORE; make lab-kernel makes one that has it"


def core_scheduling() -> Path | None:
    """The image with core scheduling, None until it was built."""
    folder = kept(NAME, _version())
    return folder / "bzImage" if folder is not None else None


def build() -> Path:
    """Raises BuildError."""
    if not SOURCE.exists():
        raise BuildError(f"{SOURCE} is missing: apt-get install {PACKAGES}")
    return made(NAME, _version(), _make) / "bzImage"


def _version() -> str:
    return f"6.1-{hashlib.sha256(CONFIG.read_bytes()).hexdigest()[:12]}"


def _make(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".kernel.") as work:
        _run("tar", "xf", str(SOURCE), "--strip-components=1", cwd=work)
        _run("make", "-s", "allnoconfig", f"KCONFIG_ALLCONFIG={CONFIG}", cwd=work)
        lines = set(Path(work, ".config").read_text().splitlines())
        if lost := [
            line for line in CONFIG.read_text().splitlines() if line.startswith("CONFIG_") and line not in lines
        ]:
            raise BuildError(f"this kernel has not all of {CONFIG.name}: {' '.join(lost)}")
        _run("make", "-s", f"-j{os.cpu_count() or 1}", "bzImage", cwd=work)
        Path(work, "arch/x86/boot/bzImage").rename(target / "bzImage")


def _run(*words: str, cwd: str) -> None:
    done = subprocess.run(["nice", "-n", "19", *words], cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(words)}:\n{(done.stderr or done.stdout)[-3000:]}")


def main() -> int:
    try:
        print(build())
    except BuildError as error:
        print(f"labs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
