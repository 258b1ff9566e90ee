"""Where a cluster lab lives: namespaces and a cgroup of its own, ended and emptied also when the owner is killed.

The guard (tests/labs/runtime/guard.py) holds a network and a mount namespace and the cgroup GROUP; every process of the
lab begins in there, so what is killed and removed at the end is complete. On top of that, inside only:
- `lo` carries the node addresses; no interface of the host is seen.
- paths that are fixed in kubelet and containerd (/run/containerd, /var/lib/kubelet/device-plugins, /var/log/containers)
  lie on empty tmpfs, and the sysctls that a kubelet sets are plain files, so its writes never reach the kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.labs.runtime import guard

ROOT = Path(__file__).resolve().parents[3]
# Of the documentation range: a kubelet refuses 127/8 as its node's address. The first is the real one's.
NODE_ADDRESSES = ("192.0.2.10", "192.0.2.20", "192.0.2.21")
TUNABLES = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
PROGRAMS = ("nsenter", "unshare", "ip", "openssl", "mount")
CLONE_NEWNET = 0x40000000
_numbers = itertools.count(1)

# rshared: or volumes that the kubelet mounts later miss the containers. Default route: the API server wants one.
INSIDE = f"""set -e
ip link set lo up
{"; ".join(f"ip addr add {a}/32 dev lo" for a in NODE_ADDRESSES)}
ip route add default dev lo
mount --make-rshared /
for d in /run /var/lib /var/log; do mount -t tmpfs -o mode=755 koordlet-lab $d; done
mkdir -p /run/sysctl /run/containerd
for t in {" ".join(TUNABLES)}; do
  cat /proc/sys/$t > /run/sysctl/value
  mv /run/sysctl/value /run/sysctl/$(echo $t | tr / .)
  mount --bind /run/sysctl/$(echo $t | tr / .) /proc/sys/$t
done
"""


class LabError(RuntimeError):
    """A part of the lab did not do what it should; the text has the end of its log."""


def missing() -> str | None:
    """Why the lab cannot run here, or None."""
    if os.geteuid() != 0:
        return "namespaces, mounts and cgroups need root"
    absent = [p for p in PROGRAMS if shutil.which(p) is None]
    if absent:
        return f"programs are not installed: {' '.join(absent)} (apt-get install util-linux iproute2 openssl)"
    if (os.cpu_count() or 1) < 2:
        return "two CPUs are needed: one is reserved, one for a pinned pod"
    tried = subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"no namespaces of its own: {tried.stderr.strip()}"
    if not all(os.access(root, os.W_OK) for root in guard.hierarchies()):
        return "cgroups are not writable"
    return None


class Sandbox:
    """`name` is also the cgroup's, directly below each hierarchy's root."""

    def __init__(self) -> None:
        number = next(_numbers)
        self.name = f"koordlet-lab-cluster-{os.getpid()}" + (f"-{number}" if number > 1 else "")
        self.work = Path("/tmp") / self.name  # not $TMPDIR: socket paths in there are bounded
        self.data = self.work / "data"  # a tmpfs that only the inside sees
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._guard: subprocess.Popen[str] | None = None

    def open(self) -> Sandbox:
        self.work.mkdir(mode=0o755)
        self.data.mkdir()
        words = ["unshare", "--mount", "--net", sys.executable, guard.__file__, str(self.work), self.name]
        self._guard = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            assert self._guard.stdout is not None
            if self._guard.stdout.readline().strip() != "ready":
                raise LabError("the lab's guard did not start")
            for root in guard.hierarchies():
                (root / self.name).mkdir(exist_ok=True)  # a kubelet wants its cgroupRoot in all of them
                _delegate(root / self.name)
            self.run(["sh", "-c", INSIDE])
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End all processes, remove cgroups, mounts, files. LabError when something could not be removed."""
        if self._guard is None:
            shutil.rmtree(self.work, ignore_errors=True)
            return
        left, _ = self._guard.communicate("end\n")
        self._guard = None
        for process in self.processes.values():
            process.kill()  # dead already, unless somebody killed the guard
            process.wait()
        self.processes.clear()
        if left.strip() != "clean":
            raise LabError(f"the cluster lab could not clean up: {left.strip()}")

    @property
    def guard_pid(self) -> int:
        """Whose namespaces are the lab's."""
        if self._guard is None:
            raise LabError("the lab is not running")
        return self._guard.pid

    def inside(self, words: Sequence[str], mounts: bool = True) -> list[str]:
        """The command that runs `words` in the lab's network, and unless told otherwise under its mounts."""
        return ["nsenter", "-t", str(self.guard_pid), "--net", *(["--mount"] if mounts else []), *words]

    def run(self, words: Sequence[str]) -> str:
        done = subprocess.run(self.inside(words), capture_output=True, text=True)
        if done.returncode != 0:
            raise LabError(f"{' '.join(words)[:200]}: {done.stderr.strip()}")
        return done.stdout

    def spawn(self, name: str, words: Sequence[str], path: Sequence[Path] = (), mounts: bool = True) -> None:
        """Start a daemon; its output goes to <name>.log. `path` is put before $PATH."""
        environment = {**os.environ, "PATH": os.pathsep.join([*map(str, path), os.environ["PATH"]])}
        procs = guard.daemon_group(self.name) / "cgroup.procs"
        command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(procs), *self.inside(words, mounts)]
        with (self.work / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Stop one daemon, with SIGKILL unless told otherwise."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGCONT)  # a drill may have stopped it
        process.send_signal(number)
        process.wait()

    def wait(self, what: str, ready: Callable[[], bool], seconds: float = 90, daemon: str = "") -> None:
        """Until `ready()`; an OSError in there means not yet."""
        end = time.monotonic() + seconds
        while True:
            try:
                if ready():
                    return
            except OSError:
                pass
            dead = bool(daemon) and self.processes[daemon].poll() is not None
            if dead or time.monotonic() > end:
                log = self.log(daemon) if daemon else ""
                raise LabError(f"{what}: {'it ended' if dead else f'not within {seconds:g} s'}\n{log}")
            time.sleep(0.05)

    def log(self, name: str, last: int = 3000) -> str:
        return (self.work / f"{name}.log").read_text(errors="replace")[-last:]

    def connect(self, address: str, port: int, timeout_s: float) -> socket.socket:
        """A TCP connection within the lab's network: a socket stays in the namespace that its thread was in."""
        with open("/proc/thread-self/ns/net") as home, open(f"/proc/{self.guard_pid}/ns/net") as lab:
            _set_namespace(lab.fileno())
            try:
                made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            finally:
                _set_namespace(home.fileno())
        try:
            made.settimeout(timeout_s)
            made.connect((address, port))
        except BaseException:
            made.close()
            raise
        return made

    @contextlib.contextmanager
    def forward(self, port: int, address: str = "127.0.0.1") -> Iterator[int]:
        """A port of this machine's loopback that leads to one inside, for a client that makes its own connections."""
        listener = socket.create_server(("127.0.0.1", 0))

        def accept() -> None:
            while True:
                try:
                    outer = listener.accept()[0]
                except OSError:
                    return  # closed: the end
                try:
                    inner = self.connect(address, port, 5)
                    inner.settimeout(None)
                except OSError:
                    outer.close()
                    continue
                for source, target in ((outer, inner), (inner, outer)):
                    threading.Thread(target=_pump, args=(source, target), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Bytes one way until the end; then the other side learns of it."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    source.close()


def _set_namespace(fd: int) -> None:
    """setns(2) for the calling thread; os.setns is there from Python 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _delegate(group: Path) -> None:
    """cgroup v2: give the group's children its controllers (v1 has no such file)."""
    if (group / "cgroup.controllers").exists():
        words = (group / "cgroup.controllers").read_text().split()
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{w}" for w in words))


def tunables() -> Mapping[str, str]:
    """Present values of the sysctls that a kubelet sets, as the caller sees them."""
    return {t: Path("/proc/sys", t).read_text() for t in TUNABLES}
