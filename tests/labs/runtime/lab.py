"""Runtime lab: a real containerd with CRI, NRI and runc on a scratch root; real sandboxes and containers, no network.

Ask for the fixture `runtime` (fixture.py). By hand: `make lab-runtime`, or `python -m tests.labs.runtime`.

Sockets: `cri_socket`, `nri_socket`. Pods are host-network pods below the lab's own cgroup parent `group`, so two labs,
or a lab and a kubelet, never meet. Seen on cgroup v1: a pod in 0.3 s, 7 MiB each; in the kernel lab's VM 4 to 10 s.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.labs import binaries
from tests.labs.runtime import cri, guard, image
from tests.labs.runtime.plugins import Plugin
from tests.labs.runtime.pods import Pod

START_S = 60
STOP_S = 60

# Everything that has a fixed path by default is moved; the section names are those of version 3 (4 wants another).
CONFIG = """version = 3
root = '{work}/data/root'
state = '{work}/data/state'
[grpc]
  address = '{work}/c.sock'
[plugins.'io.containerd.shim.v1.manager']
  socket_dir = '{work}/s'
[plugins.'io.containerd.internal.v1.opt']
  path = '{work}/opt'
[plugins.'io.containerd.nri.v1.nri']
  socket_path = '{work}/nri/nri.sock'
  plugin_path = '{work}/nri/plugins'
  plugin_config_path = '{work}/nri/conf.d'
  plugin_request_timeout = '2s'
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  pinned_images = {{ sandbox = '{pause}' }}
[plugins.'io.containerd.cri.v1.runtime']
  # Without CAP_SYS_RESOURCE the sandbox's oom_score_adj of -998 is refused.
  restrict_oom_score_adj = true
  disable_apparmor = true
  cdi_spec_dirs = ['{work}/cdi']
  cni = {{ bin_dirs = ['{work}/cni'], conf_dir = '{work}/cni' }}
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    options = {{ SystemdCgroup = false, Root = '{work}/data/runc' }}
"""


def missing() -> str | None:
    """Why the lab cannot run here, or None. That something is to be built first is no reason."""
    if os.geteuid() != 0:
        return "containers need root"
    for command, package in (("runc", "runc"), ("nsenter", "util-linux"), ("unshare", "util-linux")):
        if shutil.which(command) is None:
            return f"{command} is not installed (apt-get install {package})"
    if shutil.which("go") is None and not binaries.cached("containerd"):
        return f"containerd {binaries.part('containerd').version} is not in the cache, and go is not installed"
    if not any(os.access(root, os.W_OK) for root in guard.hierarchies()):
        return "no writable cgroup hierarchy"
    return image.missing() or cri.missing()


class Lab:
    """A running instance. Ends with its owner; `stop` tells what could not be cleaned up."""

    def __init__(self) -> None:
        guard.sweep()
        self.work = Path(tempfile.mkdtemp(prefix=guard.PREFIX, dir=guard.FOLDERS))
        self._held = guard.hold(self.work)
        self.name = self.work.name
        self.group = guard.group_of(self.work)
        self.cri_socket = self.work / "c.sock"
        self.nri_socket = self.work / "nri/nri.sock"
        self.log = self.work / "containerd.log"
        self.versions: dict[str, str] = {}
        self.started_s = 0.0
        self.containerd: subprocess.Popen[bytes] | None = None
        self.pods: list[Pod] = []
        self.plugins: list[Plugin] = []
        self._guard: subprocess.Popen[str] | None = None
        self._cri: cri.Cri | None = None

    def start(self) -> Lab:
        self.bin, self.plugin_binary = binaries.binaries("containerd"), Plugin.binary()
        cri.methods()
        begun = time.monotonic()
        for name in ("data", "nri", "s", "logs"):
            (self.work / name).mkdir()
        (self.work / "config.toml").write_text(CONFIG.format(work=self.work, pause=image.PAUSE))
        self._guard = subprocess.Popen(
            ["unshare", "-m", sys.executable, guard.__file__, str(self.work), self.group],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=[self._held],
        )
        assert self._guard.stdout is not None
        if self._guard.stdout.readline() != "ready\n":
            raise RuntimeError("the runtime lab's guard did not start; see its words above")
        self.launch()
        image.write_archive(self.work / "image.tar")
        self._import()
        self.versions = self._versions()
        self.started_s = time.monotonic() - begun
        return self

    # containerd itself

    def launch(self) -> None:
        """Start containerd, again after `kill`; pods and their shims live on meanwhile."""
        assert self._guard is not None
        # --root: where the machine is a chroot, as the kernel lab's guest is, the namespace's own root is another.
        enter = ["nsenter", "-t", str(self._guard.pid), "--mount", "--root", "--"]
        self.containerd = self.spawn([*enter, "containerd", "--config", str(self.work / "config.toml")], self.log)
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self.containerd.poll() is not None or time.monotonic() > deadline:
                text = self.log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"containerd did not come up:\n{text}")
            time.sleep(0.02)

    def kill(self, number: int) -> None:
        """Signal containerd and wait for its end."""
        assert self.containerd is not None
        self.containerd.send_signal(number)
        self.containerd.wait(STOP_S)

    def alive(self) -> bool:
        return self.containerd is not None and self.containerd.poll() is None

    def cri(self, method: str, **fields: Any) -> Any:
        """A CRI request by name, see cri.py."""
        if self._cri is None:
            self._cri = cri.Cri(self.cri_socket)
        return self._cri(method, **fields)

    def spawn(self, words: list[str], log: Path) -> subprocess.Popen[bytes]:
        """A process in the lab's cgroup, so that it ends with the lab."""
        enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        with log.open("ab") as out:
            return subprocess.Popen(
                ["sh", "-c", enter, str(guard.daemon_group(self.group)), *words],
                env={**os.environ, "PATH": f"{self.bin}:/usr/local/sbin:/usr/sbin:/sbin:{os.environ['PATH']}"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        if not self.nri_socket.exists():
            return False
        try:
            self.cri("Version", call_s=5)
        except cri.CriError:
            self._hang_up()  # the next try without back-off
            return False
        return True

    def _hang_up(self) -> None:
        if self._cri is not None:
            self._cri.close()
            self._cri = None

    def _import(self) -> None:
        # The namespace k8s.io is CRI's.
        words = [str(self.bin / "ctr"), "-a", str(self.cri_socket), "-n", "k8s.io", "images", "import"]
        done = subprocess.run([*words, str(self.work / "image.tar")], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"the image was not taken: {done.stderr}")

    def _versions(self) -> dict[str, str]:
        told = subprocess.run(["runc", "--version"], capture_output=True, text=True, check=True).stdout
        version = self.cri("Version")
        return {
            "containerd": version.runtime_version,
            "runc": re.findall(r"\d\S*", told)[0],
            "NRI": binaries.part("nri").version,
            "CRI": version.runtime_api_version,
            "cgroup": "v2" if guard.CGROUPS in guard.hierarchies() else "v1",
        }

    # what runs in it

    def pod(self, name: str, qos: str = "", **more: dict[str, str]) -> Pod:
        """A sandbox; `qos` is "", "burstable" or "besteffort" as a kubelet's parents are. More: labels, annotations."""
        pod = Pod(self, name, qos, **more)
        self.pods.append(pod)
        return pod

    def plugin(
        self, name: str = "lab", index: str = "10", retry_ms: int = 0, rules: dict[str, Any] | None = None
    ) -> Plugin:
        """An NRI plugin that has been told what there is. `rules` hold from the start, see Plugin.rules."""
        plugin = Plugin(self, name, index, retry_ms, rules or {})
        self.plugins.append(plugin)
        plugin.wait("Synchronize")
        return plugin

    def clear(self) -> None:
        """No plugin, no pod, and containerd running."""
        for plugin in self.plugins:
            plugin.close()
        self.plugins.clear()
        if not self.alive():
            self.launch()
        for sandbox in self.cri("ListPodSandbox").items:
            self.cri("RemovePodSandbox", pod_sandbox_id=sandbox.id)
        for pod in self.pods:
            pod.remove_groups()
        self.pods.clear()

    def stop(self) -> None:
        """End everything, also after a half start or with the guard killed. RuntimeError says what is left."""
        self._hang_up()
        if self._guard is not None:
            try:
                self._guard.communicate("stop\n", STOP_S)
            except subprocess.TimeoutExpired:
                self._guard.kill()
                self._guard.communicate()
        left = guard.clean(self.work, self.group)  # at once, unless the guard failed
        os.close(self._held)
        if left:
            raise RuntimeError(f"the runtime lab left something behind: {', '.join(left)}")
        for process in (self.containerd, *(p.process for p in self.plugins)):
            if process is not None:
                process.wait(STOP_S)


@contextlib.contextmanager
def running() -> Iterator[Lab]:
    lab = Lab()
    try:
        yield lab.start()
    finally:
        lab.stop()
