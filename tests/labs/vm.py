"""Kernel lab: a VM under software emulation with Debian's kernel, cgroup v2, PSI, two sockets, SMT and two NUMA nodes.

The guest's root is this machine's root over 9p, read-only under a tmpfs overlay, so Python, the virtual environment
and the checkout are there and nothing written survives. Jobs go through a shared folder: the host writes
`<n>.job`, the guest runs it with bash and leaves `<n>.out` and `<n>.rc`. One boot serves many jobs. In a job
`$PYTHON` is the interpreter that started the lab, and the working directory is the checkout.

By hand: `make lab-vm`, or `python -m tests.labs.vm 'lscpu -e'` for one command (VARIANT=systemd for another machine).
"""

from __future__ import annotations

import compileall
import contextlib
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.labs import kernels

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("virtio_pci", "9p", "9pnet_virtio", "overlay", "loop")
BOOT_S = 80
"""A boot takes 9-24 s here; a stalled one never ends."""
SILENT_S = 180.0
"""The guest gives a sign of life each 5 s; under a full load it may be late."""
BOOTS = 3
CPU = "Skylake-Server-v4,-erms"
"""Without fast string instructions the kernel clears pages by eight bytes at a time, each of which costs the emulator
as much as a byte does."""

TWO_NODES = (
    "-smp 8,sockets=2,cores=2,threads=2 "
    "-object memory-backend-ram,id=m0,size=2G -object memory-backend-ram,id=m1,size=2G "
    "-numa node,nodeid=0,memdev=m0,cpus=0-3 -numa node,nodeid=1,memdev=m1,cpus=4-7"
)


@dataclass(frozen=True)
class Variant:
    """Shape of the machine: QEMU's -smp/-numa words and extra kernel arguments. systemd: it is pid 1. core_sched: the
    kernel is ours (kernels.py), not Debian's."""

    name: str
    shape: str = TWO_NODES
    append: str = ""
    memory_mb: int = 4096
    systemd: bool = False
    core_sched: bool = False


VARIANTS = {
    v.name: v
    for v in (
        Variant("two-nodes"),
        Variant("one-node", "-smp 4,sockets=1,cores=4,threads=1", memory_mb=2048),
        Variant(
            "memory-node",
            "-smp 4,sockets=1,cores=2,threads=2 "
            "-object memory-backend-ram,id=m0,size=2G -object memory-backend-ram,id=m1,size=1G "
            "-numa node,nodeid=0,memdev=m0,cpus=0-3 -numa node,nodeid=1,memdev=m1",
            memory_mb=3072,
        ),
        Variant("no-psi", append="psi=0"),
        Variant("core-sched", "-smp 4,sockets=1,cores=2,threads=2", memory_mb=2048, core_sched=True),
        Variant(
            "systemd",
            "-smp 2,sockets=1,cores=2,threads=1",
            append="fstab=0 systemd.condition-first-boot=no",
            memory_mb=2048,
            systemd=True,
        ),
    )
}

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
for m in {modules}; do insmod /mods/$m 2>/dev/null; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=1048576,cache=loose hostroot /ro
mount -t tmpfs t /rw; mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work o /new
mkdir /checkout; mount --bind /new{root} /checkout
mount -t tmpfs t /new/run; mount -t tmpfs t /new/tmp; mkdir -p /new/run/lab
[ -d /new{root} ] || {{ mkdir -p /new{root}; mount --bind /checkout /new{root}; }}
mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=none lab /new/run/lab
mount --move /proc /new/proc; mount --move /sys /new/sys; mount --move /dev /new/dev
ln -sfn /proc/self/fd /new/dev/fd
mount -t cgroup2 -o nsdelegate,memory_recursiveprot c /new/sys/fs/cgroup
mkdir -p /new/dev/shm; mount -t tmpfs t /new/dev/shm
{pid1}
poweroff -f
"""

PLAIN = """chroot /new /bin/bash -c 'ip link set lo up 2>/dev/null; exec /bin/bash /run/lab/serve.sh'"""

SYSTEMD = """units=/new/run/systemd/system; mkdir -p $units
for wanted in /new/lib/systemd/system/*.wants/* /new/etc/systemd/system/*.wants/*; do
  unit=${wanted##*/}
  case $unit in *.service|*.socket|*.mount|*.automount|*.path|*.timer) ln -sfn /dev/null $units/$unit;; esac
done
ln -sfn /dev/null $units/dbus.service; ln -sfn /dev/null $units/dbus.socket
cp /new/run/lab/koordlet-lab.* $units/
umount /checkout
exec switch_root /new /lib/systemd/systemd --unit=koordlet-lab.target"""

UNITS = {
    "koordlet-lab.target": "[Unit]\nRequires=koordlet-lab.service\n",
    "koordlet-lab.service": (
        "[Unit]\nDefaultDependencies=no\n"
        "[Service]\nExecStart=/bin/bash -c 'ip link set lo up; exec /bin/bash /run/lab/serve.sh'\n"
        "ExecStopPost=/bin/systemctl poweroff --force --force\nStandardOutput=null\nStandardError=null\n"
    ),
}
"""systemd without journal, udev and message bus, which it does not need here and which take long under emulation."""

SERVE = """export HOME=/root PATH={path} PYTHON={python} KOORDLET_GUEST=1
cd {root}
uname -r > /run/lab/up
(while :; do echo > /run/lab/beat; read -r -t 5 <> <(:); done) > /dev/null 2>&1 &
n=0
while [ ! -e /run/lab/stop ]; do
  if [ -e /run/lab/$n.job ]; then
    bash /run/lab/$n.job > /run/lab/$n.out 2>&1 < /dev/null
    echo $? > /run/lab/$n.tmp; mv /run/lab/$n.tmp /run/lab/$n.rc
    n=$((n+1))
  else
    sleep 0.2
  fi
done
"""


def missing(variant: str = "two-nodes") -> str | None:
    """Why the lab cannot run here, or None."""
    commands = [("qemu-system-x86_64", "qemu-system-x86"), ("busybox", "busybox-static"), ("cpio", "cpio")]
    if VARIANTS[variant].systemd:
        commands.append(("/lib/systemd/systemd", "systemd"))
    for command, package in commands:
        if shutil.which(command) is None:
            return f"{command} is not installed (apt-get install {package})"
    if VARIANTS[variant].core_sched:
        return None if kernels.core_scheduling() else kernels.LACKS
    if kernel() is None:
        return "no kernel image in /boot (apt-get install linux-image-amd64)"
    return None


def kernel() -> Path | None:
    """Newest kernel image that has modules."""
    images = [p for p in Path("/boot").glob("vmlinuz-*") if Path("/lib/modules", p.name[8:]).is_dir()]
    return max(images, key=lambda p: [int(n) for n in re.findall(r"\d+", p.name)], default=None)


class Stalled(Exception):  # noqa: N818 - what happened
    """The emulator lost an interrupt, and with it the guest. output: what the job had printed."""

    def __init__(self, silent_s: float, output: str) -> None:
        self.output = output
        super().__init__(f"no sign of life from the guest for {silent_s:.0f} s, the emulator stalled")


class Lab:
    """A running VM. `run` executes a bash script in it and returns (exit code, output)."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.work = Path(tempfile.mkdtemp(prefix="koordlet-lab-"))
        self.share = self.work / "share"
        self.share.mkdir()
        self.jobs = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.image: Path | None = None
        self.started_s = 0.0

    @property
    def told(self) -> str:
        """For the run's record."""
        return f"{self.variant.name}: Linux {(self.share / 'up').read_text().strip()}, up after {self.started_s:.0f} s"

    def start(self) -> Lab:
        image = kernels.core_scheduling() if self.variant.core_sched else kernel()
        assert image is not None
        for package in ("koordlet", "tests/live"):  # compiling in the guest would take many times as long
            compileall.compile_dir(ROOT / package, quiet=2)
        self._initrd("" if self.variant.core_sched else image.name[8:])
        (self.share / "serve.sh").write_text(SERVE.format(root=ROOT, path=os.environ["PATH"], python=sys.executable))
        for name, text in UNITS.items():
            (self.share / name).write_text(text)
        self._up(image)
        return self

    def reboot(self) -> None:
        """Another machine in place of one that stalled."""
        assert self.image is not None
        self._end()
        for path in self.share.iterdir():
            if path.name in ("up", "beat") or path.suffix in (".job", ".out", ".rc", ".part"):
                path.unlink()
        self.jobs = 0
        self._up(self.image)

    def _up(self, image: Path) -> None:
        self.image = image
        for attempt in range(1, BOOTS + 1):
            begun = time.monotonic()
            if self._boot(image, begun):
                self.started_s = time.monotonic() - begun
                return
            tail = (self.work / "console").read_text(errors="replace")[-2000:]
            print(f"kernel lab: boot {attempt} of {BOOTS} did not come up:\n{tail}", file=sys.stderr)
        raise RuntimeError(f"the VM did not come up in {BOOTS} boots; the last one printed:\n{tail}")

    def _boot(self, image: Path, begun: float) -> bool:
        """Start the machine and wait until it serves. The emulator now and then loses a timer interrupt of a virtual
        CPU at boot and the kernel stalls for good ("rcu_preempt kthread starved"): then False, and it is gone."""
        with (self.work / "console").open("wb") as console:
            self.process = subprocess.Popen(
                [
                    *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", CPU),
                    *("-m", str(self.variant.memory_mb), *self.variant.shape.split()),
                    *("-virtfs", "local,path=/,mount_tag=hostroot,security_model=none,multidevs=remap,readonly=on"),
                    *("-virtfs", f"local,path={self.share},mount_tag=lab,security_model=none"),
                    *("-kernel", str(image), "-initrd", str(self.work / "initrd.gz")),
                    *("-nographic", "-no-reboot", "-nic", "none"),
                    *("-append", f"console=ttyS0 quiet psi=1 panic=-1 mitigations=off {self.variant.append}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
            )
        up = self.share / "up"
        while not up.exists() or not up.read_text():
            if self.process.poll() is not None or time.monotonic() - begun > BOOT_S:
                self._end()
                return False
            time.sleep(0.2)
        return True

    def _initrd(self, release: str) -> None:
        """release: whose modules the machine needs, "" where all is built in."""
        tree = self.work / "initrd"
        for name in ("bin", "proc", "sys", "dev", "ro", "rw", "new", "mods"):
            (tree / name).mkdir(parents=True)
        busybox = shutil.which("busybox")
        assert busybox is not None
        shutil.copy(busybox, tree / "bin/busybox")
        order: list[str] = []
        for module in MODULES if release else ():
            listed = subprocess.run(
                ["/sbin/modprobe", "--show-depends", "-S", release, module], capture_output=True, text=True, check=True
            )
            for line in listed.stdout.splitlines():
                path = Path(line.split()[1]) if line.startswith("insmod") else None
                if path and path.name not in order:
                    shutil.copy(path, tree / "mods" / path.name)
                    order.append(path.name)
        init = tree / "init"
        pid1 = SYSTEMD if self.variant.systemd else PLAIN
        init.write_text(INIT.format(modules=" ".join(order), root=ROOT, pid1=pid1))
        init.chmod(0o755)
        names = "\n".join(str(p.relative_to(tree)) for p in sorted(tree.rglob("*")))
        packed = subprocess.run(
            ["cpio", "-o", "-H", "newc"], input=names.encode(), cwd=tree, capture_output=True, check=True
        )
        (self.work / "initrd.gz").write_bytes(gzip.compress(packed.stdout, 1))

    def run(self, script: str, timeout_s: float = 300, follow: bool = False) -> tuple[int, str]:
        """Run `script` in the guest, once more on a new machine if the emulator stalls. `follow` copies its output to
        stderr as it comes."""
        try:
            return self.run_once(script, timeout_s, follow)
        except Stalled as stalled:
            print(f"kernel lab: {stalled}; once more on a new machine", file=sys.stderr)
            self.reboot()
            return self.run_once(script, timeout_s, follow)

    def run_once(self, script: str, timeout_s: float, follow: bool) -> tuple[int, str]:
        """As `run`. Raises Stalled."""
        number, self.jobs = self.jobs, self.jobs + 1
        part = self.share / f"{number}.part"
        part.write_text(script + "\n")
        part.rename(self.share / f"{number}.job")
        out, rc = self.share / f"{number}.out", self.share / f"{number}.rc"
        deadline, shown = time.monotonic() + timeout_s, 0
        while not rc.exists():
            if follow and out.exists():
                text = out.read_text(errors="replace")
                sys.stderr.write(text[shown:])
                shown = len(text)
            if time.monotonic() > deadline or (self.process and self.process.poll() is not None):
                text = out.read_text(errors="replace") if out.exists() else ""
                raise TimeoutError(f"no end of the guest's job after {timeout_s:.0f} s; it printed:\n{text[-4000:]}")
            if (silent_s := self._silent_s()) > SILENT_S:
                raise Stalled(silent_s, out.read_text(errors="replace") if out.exists() else "")
            time.sleep(0.2)
        text = out.read_text(errors="replace")
        if follow:
            sys.stderr.write(text[shown:])
        return int(rc.read_text()), text

    def _silent_s(self) -> float:
        """Since the guest's last sign of life."""
        try:
            return time.time() - (self.share / "beat").stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def stop(self) -> None:
        (self.share / "stop").touch()
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            self._end()
        shutil.rmtree(self.work, ignore_errors=True)

    def _end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def running(name: str = "two-nodes") -> Iterator[Lab]:
    """A started lab of that variant, stopped at the end."""
    lab = Lab(VARIANTS[name])
    try:
        yield lab.start()
    finally:
        lab.stop()


def main() -> int:
    reason = missing()
    if reason:
        print(f"kernel lab: {reason}", file=sys.stderr)
        return 1
    command = " ".join(sys.argv[1:])
    with running(os.environ.get("VARIANT", "two-nodes")) as lab:
        print(f"kernel lab up after {lab.started_s:.0f} s", file=sys.stderr)
        if command:
            code, text = lab.run(command, float(os.environ.get("VM_TIMEOUT", "300")))
            print(text, end="")
            return code
        print("Type a command per line; it runs in the guest with bash (e.g. lscpu -e). Ctrl-D ends the lab.")
        for line in sys.stdin:
            code, text = lab.run(line, 3600)
            print(f"{text}[exit {code}]", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
