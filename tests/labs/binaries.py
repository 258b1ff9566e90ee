"""Real parts of the labs: versions.toml says which, this builds and keeps them outside the tree.

A part lies in <cache>/<name>-<version>/; the first run on a machine pays, with the lowest priority. The cache is
$KOORDLET_LABS_CACHE, else $XDG_CACHE_HOME/koordlet-labs, else ~/.cache/koordlet-labs. Removing it is always safe.

By hand, to pay before the tests do: python -m tests.labs.binaries containerd nri
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

VERSIONS = Path(__file__).with_name("versions.toml")


class BuildError(RuntimeError):
    """A part could not be had; the text has the end of the builder's output."""


@dataclass(frozen=True, slots=True)
class Part:
    """One table of versions.toml. `version` has no leading v."""

    name: str
    version: str
    module: str
    build: Mapping[str, str] = field(default_factory=dict)
    ldflags: str = ""
    staging: str = ""  # version of the modules that the part's go.mod replaces by ./staging paths (Kubernetes)


@cache
def parts() -> Mapping[str, Part]:
    tables = tomllib.loads(VERSIONS.read_text())
    return {name: Part(name, **table) for name, table in tables.items()}


def part(name: str) -> Part:
    try:
        return parts()[name]
    except KeyError:
        raise BuildError(f"{VERSIONS.name} has no part {name!r}; it has {' '.join(parts())}") from None


def cached(name: str) -> bool:
    """Whether `binaries(name)` would return at once."""
    return kept(name, part(name).version) is not None


def binaries(name: str) -> Path:
    """Folder with that part's binaries."""
    wanted = part(name)
    packages = {binary: f"{wanted.module}/{path}".rstrip("/") for binary, path in wanted.build.items()}

    def make(target: Path) -> None:
        with _module(target, wanted) as work:
            for binary, package in packages.items():
                _build(work, package, target / binary, wanted.ldflags)

    return made(name, wanted.version, make)


def program(source: Path, needs: str) -> Path:
    """A Go program of our own (all .go files of the folder `source`), built against the part `needs`."""
    files = sorted(source.glob("*.go"))
    wanted = part(needs)
    text = b"".join(f.read_bytes() for f in files)
    version = f"{wanted.version}-{hashlib.sha256(text).hexdigest()[:12]}"

    def make(target: Path) -> None:
        with _module(target, wanted) as work:
            for file in files:
                shutil.copy(file, work)
            _build(work, ".", target / source.name, "")

    return made(f"lab-{source.name}", version, make) / source.name


def source(name: str) -> Path:
    """The part's source as it lies in Go's module cache, read-only."""
    wanted = part(name)
    return Path(_go("mod", "download", "-json", f"{wanted.module}@v{wanted.version}", find="Dir"))


def made(name: str, version: str, make: Callable[[Path], None]) -> Path:
    """Cached folder <name>-<version>; `make` fills it once, whole or not at all, one maker at a time on a machine."""
    folder = _folder(name, version)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        begun = time.monotonic()
        print(f"labs: making {name} {version}, once on this machine", file=sys.stderr, flush=True)
        for abandoned in folder.parent.glob(f".{folder.name}.*/"):  # its maker was killed
            shutil.rmtree(abandoned)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            make(partial)
            partial.chmod(0o755)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        print(f"labs: made {name} {version} in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return folder


def kept(name: str, version: str) -> Path | None:
    """The folder that `made` would return at once, else None."""
    folder = _folder(name, version)
    return folder if folder.is_dir() else None


def _folder(name: str, version: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("KOORDLET_LABS_CACHE") or Path(home) / "koordlet-labs") / f"{name}-{version}"


@contextlib.contextmanager
def _module(target: Path, need: Part) -> Iterator[Path]:
    """A module of our own that asks for the part: `go install module@version` refuses one with replace lines."""
    theirs = source(need.name)
    text = (theirs / "go.mod").read_text()
    # Their go line: without one, go reads the whole graph of dependencies, unpruned.
    lines = ["module lab", *re.findall(r"^go \S+", text, re.MULTILINE), f"require {need.module} v{need.version}"]
    if need.staging:
        staged = re.findall(r"^\s*(?:replace\s+)?(\S+) => \./staging/", text, re.MULTILINE)
        lines += [f"replace {module} => {module} v{need.staging}" for module in staged]
    with tempfile.TemporaryDirectory(dir=target, prefix=".module.") as name:
        work = Path(name)
        (work / "go.mod").write_text("\n".join(lines) + "\n")
        # What the part's makers had, so that each dependency is what they had, and known without a look-up.
        (work / "go.sum").write_bytes((theirs / "go.sum").read_bytes())
        yield work


def _build(work: Path, package: str, binary: Path, ldflags: str) -> None:
    # -mod=mod lets go write the sums and indirect requirements down, of what is built and not of its tests.
    _go("build", "-mod=mod", "-trimpath", f"-ldflags=-s -w {ldflags}", "-o", str(binary), package, cwd=work)


def _go(*words: str, cwd: Path | None = None, find: str = "") -> str:
    if shutil.which("go") is None:
        raise BuildError("go is not installed, and the part is not in the cache")
    where = cwd or Path(tempfile.gettempdir())  # not in a module: `go mod download` would read its go.mod
    environment = {**os.environ, "GOWORK": "off", "CGO_ENABLED": "0"}
    done = subprocess.run(
        ["nice", "-n", "19", "go", *words], cwd=where, env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise BuildError(f"go {' '.join(words)}:\n{(done.stderr or done.stdout)[-3000:]}")
    return str(json.loads(done.stdout)[find]) if find else done.stdout


def main() -> int:
    for name in sys.argv[1:] or list(parts()):
        try:
            print(binaries(name) if part(name).build else source(name))
        except BuildError as e:
            print(f"labs: {e}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
