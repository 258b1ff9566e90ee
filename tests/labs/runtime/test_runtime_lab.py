"""The lab itself: containers are real, pods outlive containerd, two labs never meet, and nothing is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.labs.runtime import guard
from tests.labs.runtime.lab import Lab, running
from tests.labs.runtime.pods import Container

pytestmark = [pytest.mark.lab_runtime, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[3]
# Places that a runtime uses unless told otherwise.
FIXED = ("/run/containerd", "/run/runc", "/run/nri", "/run/netns", "/var/lib/containerd", "/opt/containerd", "/opt/nri")
SYSCTLS = [
    *(f"net/ipv4/{name}" for name in ("ip_forward", "ip_unprivileged_port_start", "ping_group_range")),
    *(f"vm/{name}" for name in ("overcommit_memory", "panic_on_oom", "max_map_count")),
    *(f"kernel/{name}" for name in ("panic", "panic_on_oops", "pid_max", "threads-max")),
]


def test_the_parts_are_those_of_the_versions_file(runtime: Lab) -> None:
    assert runtime.versions["containerd"].lstrip("v").startswith("2.4.")
    assert runtime.versions["CRI"] == "v1"
    conditions = {c.type: c.status for c in runtime.cri("Status").status.conditions}
    assert conditions["RuntimeReady"]


@pytest.mark.parametrize(
    ("resources", "v1", "v2"),
    [
        ({"cpu_shares": 512}, {"cpu.shares": "512"}, {"cpu.weight": ("20", "59")}),  # runc's formula, newer ones'
        ({"cpu_period": 100_000, "cpu_quota": 50_000}, {"cpu.cfs_quota_us": "50000"}, {"cpu.max": ("50000 100000",)}),
        ({"memory_limit_in_bytes": 64 << 20}, {"memory.limit_in_bytes": "67108864"}, {"memory.max": ("67108864",)}),
        ({"cpuset_cpus": "0"}, {"cpuset.cpus": "0"}, {"cpuset.cpus": ("0",)}),
    ],
)
def test_what_cri_asks_for_is_in_the_kernel(
    runtime: Lab, resources: dict[str, object], v1: dict[str, str], v2: dict[str, tuple[str, ...]]
) -> None:
    container = runtime.pod("asked").container(resources=resources)
    (old, value), (new, values) = v1.popitem(), v2.popitem()
    assert container.read(old, new) in (value, *values)


def test_a_container_is_a_process_in_its_cgroup(runtime: Lab) -> None:
    pod = runtime.pod("real", "besteffort")
    container = pod.container(command=("sh", "-c", "while :; do sleep 1000; done"))
    assert f"/{runtime.group}/kubepods/besteffort/pod{pod.uid}/{container.id}" in cgroups_of(container.pid)
    assert container.run("cat", "/proc/1/cmdline").startswith("sh\0-c")
    assert Path(f"/proc/{container.pid}/root/bin/busybox").exists()
    container.update(cpu_shares=777)
    assert container.read("cpu.shares", "cpu.weight") in ("777", "30", "80")
    container.stop()
    assert container.state == "CONTAINER_EXITED"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_pods_live_on_while_containerd_is_away(runtime: Lab, number: signal.Signals) -> None:
    container = runtime.pod("steady").container()
    pid = container.pid
    runtime.kill(number)
    os.kill(pid, 0)
    runtime.launch()
    assert container.pid == pid
    assert container.state == "CONTAINER_RUNNING"


def test_a_killed_guard_is_made_up_for(runtime: Lab) -> None:
    with running() as lab:
        lab.pod("unguarded").container()
        assert lab._guard is not None
        lab._guard.kill()
    assert not lab.work.exists()
    assert not guard.trees(lab.group)
    assert processes_of(lab.work) == []


def test_two_labs_do_not_touch_each_other(runtime: Lab) -> None:
    mine = runtime.plugin()
    container = runtime.pod("same").container()
    with running() as other:
        theirs = other.plugin()
        other.pod("same").container()
        assert [p.metadata.uid for p in other.cri("ListPodSandbox").items] == [f"{other.name}-same"]
        other.clear()
        assert container.state == "CONTAINER_RUNNING"
        assert len(mine.of("CreateContainer")) == len(theirs.of("CreateContainer")) == 1
    os.kill(container.pid, 0)
    assert container.run("true") == ""


def test_nothing_is_left(runtime: Lab) -> None:
    before = machine()
    with running() as lab:
        lab.plugin().freeze()
        container = lab.pod("busy", "burstable").container()
        freeze(container)
        assert any(guard.trees(lab.group))
        assert str(lab.work) not in Path("/proc/self/mounts").read_text()
    assert not lab.work.exists()
    assert not guard.trees(lab.group)
    assert processes_of(lab.work) == []
    assert machine() == before


@pytest.mark.parametrize("guarded", [True, False])
def test_it_ends_with_its_owner(runtime: Lab, guarded: bool) -> None:
    """A killed test run leaves nothing either; one killed with its guard is swept up by the next run."""
    script = (
        "import os, signal; from tests.labs.runtime.lab import Lab; lab = Lab().start(); lab.plugin();"
        "c = lab.pod('orphan').container(); print(lab.work, lab.group, lab._guard.pid, c.pid, flush=True);"
        "input(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        work, group, guarding, container = owner.stdout.readline().split()
        guard.sweep()
        assert guard.trees(group)  # in use
        ends = [os.pidfd_open(int(pid)) for pid in (guarding, container)]
        if not guarded:
            os.kill(int(guarding), signal.SIGKILL)
        owner.stdin.write("\n")
        owner.stdin.flush()
    for end in ends:
        assert select.select([end], [], [], 60)[0]
        os.close(end)
        if not guarded:
            guard.sweep()
    assert not Path(work).exists()
    assert not guard.trees(group)
    assert processes_of(Path(work)) == []


def test_by_hand(runtime: Lab) -> None:
    lines = ["plugin 10-watch", "pod web besteffort", "pods", "restart", "events 10-watch", "clear", "pods", "huh"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.labs.runtime"],
        cwd=ROOT,
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    for words in (
        "ctr -a /tmp/kl-rt-",
        "kubepods/besteffort/pod",
        "up again",
        "PostStartContainer",
        "no pods",
        "one of:",
    ):
        assert words in done.stdout


def machine() -> dict[str, object]:
    """What a lab could leave on the machine."""
    return {
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if "kl-rt-" in line],
        "loops": sorted(p.parent.parent.name for p in Path("/sys/block").glob("loop*/loop/backing_file")),
        "fixed": [p for p in FIXED if Path(p).exists()],
        "sysctls": {name: Path("/proc/sys", name).read_text() for name in SYSCTLS},
        "links": sorted(os.listdir("/sys/class/net")),
    }


def processes_of(work: Path) -> list[str]:
    """Command lines that name the lab's folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(work) in line:
            found.append(line)
    return found


def cgroups_of(pid: int) -> list[str]:
    return [line.split(":", 2)[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]


def freeze(container: Container) -> None:
    v2 = guard.CGROUPS / container.cgroup[1:] / "cgroup.freeze"
    if v2.exists():
        v2.write_text("1")
    else:
        (guard.CGROUPS / "freezer" / container.cgroup[1:] / "freezer.state").write_text("FROZEN")
