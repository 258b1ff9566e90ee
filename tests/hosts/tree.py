"""Little copied nodes in a temporary directory: nested literals -> files, and a few ready shapes.

tree = v2_one_socket(tmp_path)
tree.cgroup("kubepods.slice", cpu_files=True)
read_topology(tree.host)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Union

from koordlet.kernel.host import CgroupVersion, Host

Content = Union[str, bytes, Mapping[str, "Content"]]  # noqa: UP007 - a forward reference
"""A file's text, or a directory of contents."""

PSI = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
V1_SUBSYSTEMS = ("cpu", "cpuacct", "cpuset", "memory", "blkio", "freezer")
V1_UNLIMITED = "9223372036854771712\n"

V1_FILES: dict[str, dict[str, str]] = {
    "cpu": {
        "cpu.shares": "1024\n",
        "cpu.cfs_quota_us": "-1\n",
        "cpu.cfs_period_us": "100000\n",
        "cpu.cfs_burst_us": "0\n",
        "cpu.idle": "0\n",
        "cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
    },
    "cpuacct": {"cpuacct.usage": "0\n"},
    "cpuset": {"cpuset.cpus": "0\n", "cpuset.mems": "0\n", "cpuset.memory_migrate": "0\n"},
    "memory": {
        "memory.limit_in_bytes": V1_UNLIMITED,
        "memory.usage_in_bytes": "0\n",
        "memory.stat": "total_rss 0\ntotal_cache 0\ntotal_inactive_anon 0\ntotal_active_anon 0\n"
        "total_inactive_file 0\ntotal_active_file 0\ntotal_unevictable 0\n",
    },
    "blkio": {
        "blkio.throttle.read_bps_device": "",
        "blkio.throttle.write_bps_device": "",
        "blkio.throttle.read_iops_device": "",
        "blkio.throttle.write_iops_device": "",
    },
    "freezer": {"freezer.state": "THAWED\n"},
}
"""A fresh v1 cgroup: subsystem -> its files."""

V2_FILES: dict[str, str] = {
    "cgroup.controllers": "cpuset cpu io memory\n",
    "cgroup.freeze": "0\n",
    "cpu.stat": "usage_usec 0\nuser_usec 0\nsystem_usec 0\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
    "cpu.weight": "100\n",
    "cpu.max": "max 100000\n",
    "cpu.max.burst": "0\n",
    "cpu.idle": "0\n",
    "cpu.pressure": PSI,
    "memory.pressure": PSI,
    "io.pressure": PSI,
    "cpuset.cpus": "\n",
    "cpuset.cpus.effective": "0\n",
    "cpuset.cpus.partition": "member\n",
    "cpuset.mems": "\n",
    "cpuset.mems.effective": "0\n",
    "memory.max": "max\n",
    "memory.high": "max\n",
    "memory.min": "0\n",
    "memory.low": "0\n",
    "memory.oom.group": "0\n",
    "memory.current": "0\n",
    "memory.reclaim": "",
    "io.max": "",
    "io.weight": "default 100\n",
    "memory.stat": "anon 0\nfile 0\ninactive_anon 0\nactive_anon 0\ninactive_file 0\nactive_file 0\nunevictable 0\n",
}
"""A fresh v2 cgroup with all controllers on."""


def host_below(root: Path, version: CgroupVersion) -> Host:
    """A host whose root directories all lie below one."""
    return Host(
        cgroup_root=root / "cgroup",
        sys_root=root / "sys",
        sys_fs_root=root / "sys/fs",
        proc_root=root / "proc",
        var_run_root=root / "var/run",
        run_root=root / "run",
        kubelet_root=root / "kubelet",
        version=version,
    )


class HostTree:
    """One node under `root`: cgroup/ sys/ sys/fs/ proc/ var/run/ run/ kubelet/."""

    def __init__(self, root: Path, version: CgroupVersion, tree: Mapping[str, Content] | None = None) -> None:
        self.root = root
        self.version = version
        self.host = host_below(root, version)
        self.put("", {"cgroup": {}, "sys": {"fs": {}}, "proc": {}, "var": {"run": {}}, "run": {}, "kubelet": {}})
        if version is CgroupVersion.V2:
            self.put("cgroup", {"cgroup.controllers": "cpuset cpu io memory\n"})
            self.put("cgroup", {"cgroup.subtree_control": "cpuset cpu io memory\n", "cpu.stat": "usage_usec 0\n"})
        else:
            self.put("cgroup", {subsystem: {} for subsystem in V1_SUBSYSTEMS})
        self.put("", tree or {})

    def put(self, path: str, content: Content) -> Path:
        """Write a file, or a directory with what is in it; existing siblings stay."""
        place = self.root / path
        if isinstance(content, Mapping):
            place.mkdir(parents=True, exist_ok=True)
            for name, below in content.items():
                self.put(f"{path}/{name}" if path else name, below)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode() if isinstance(content, str) else content)
        return place

    def cgroup(self, target: str, files: Mapping[str, str] | None = None, *, drop: tuple[str, ...] = ()) -> None:
        """A cgroup with all its files, in every v1 hierarchy. files: other content by name. drop: files left out."""
        files = dict(files or {})
        known = {"": V2_FILES} if self.version is CgroupVersion.V2 else V1_FILES
        for subsystem, fresh in known.items():
            made = {name: files.pop(name, text) for name, text in fresh.items() if name not in drop}
            self.put("/".join(part for part in ("cgroup", subsystem, target) if part), made)
        for name, text in files.items():
            subsystem = "" if self.version is CgroupVersion.V2 else name.partition(".")[0]
            self.put("/".join(part for part in ("cgroup", subsystem, target, name) if part), text)

    def read(self, path: str) -> str:
        return (self.root / path).read_text()


def cpus(
    layout: Mapping[int, tuple[int, int, int]], *, l3: bool = True, threads: Mapping[int, str] | None = None
) -> dict[str, Content]:
    """sysfs `devices/system/cpu` of online CPUs. layout: CPU -> (package, core_id, L3 id); threads: CPU -> siblings.

    Without `threads` the CPUs of one (package, core_id) are siblings.
    """
    found: dict[str, Content] = {"online": ",".join(map(str, sorted(layout))) + "\n"}
    for cpu, (package, core, l3_id) in layout.items():
        siblings = ",".join(str(other) for other, place in sorted(layout.items()) if place[:2] == (package, core))
        sharing = ",".join(str(other) for other, place in sorted(layout.items()) if place[2] == l3_id)
        caches: dict[str, Content] = {
            "index0": {"level": "1\n", "type": "Data\n", "id": f"{core}\n", "shared_cpu_list": siblings + "\n"},
            "index1": {"level": "1\n", "type": "Instruction\n", "id": f"{core}\n", "shared_cpu_list": siblings + "\n"},
            "index2": {"level": "2\n", "type": "Unified\n", "id": f"{core}\n", "shared_cpu_list": siblings + "\n"},
        }
        if l3:
            caches["index3"] = {
                "level": "3\n",
                "type": "Unified\n",
                "id": f"{l3_id}\n",
                "shared_cpu_list": sharing + "\n",
            }
        found[f"cpu{cpu}"] = {
            "topology": {
                "physical_package_id": f"{package}\n",
                "core_id": f"{core}\n",
                "thread_siblings_list": (threads or {}).get(cpu, siblings) + "\n",
            },
            "cache": caches,
        }
    return found


def numa(nodes: Mapping[int, tuple[str, int]]) -> dict[str, Content]:
    """sysfs `devices/system/node`. nodes: id -> (CPU list, MemTotal in KiB)."""
    found: dict[str, Content] = {"online": ",".join(map(str, sorted(nodes))) + "\n"}
    for node, (cpu_list, total_kib) in nodes.items():
        rows = {"MemTotal": total_kib, "MemFree": total_kib // 2, "Active(file)": 0, "Inactive(file)": 0}
        rows["SReclaimable"] = 0
        meminfo = "".join(f"Node {node} {key}:       {value} kB\n" for key, value in rows.items())
        found[f"node{node}"] = {"cpulist": cpu_list + "\n", "meminfo": meminfo}
    return found


def proc(cpu_ids: range, total_kib: int, *, psi: bool = True) -> dict[str, Content]:
    """/proc of an idle node."""
    row = "0 0 0 1000 0 0 0 0 0 0\n"
    found: dict[str, Content] = {
        "stat": f"cpu  {row}" + "".join(f"cpu{cpu} {row}" for cpu in cpu_ids) + "btime 1700000000\n",
        "meminfo": f"MemTotal: {total_kib} kB\nMemFree: {total_kib // 2} kB\nMemAvailable: {total_kib // 2} kB\n",
        "cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Test CPU @ 2.00GHz\nflags\t\t: fpu\n\n",
        "filesystems": "nodev\tcgroup\nnodev\tcgroup2\n",
    }
    if psi:
        found["pressure"] = dict.fromkeys(("cpu", "memory", "io"), PSI)
    return found


GIB_KIB = 1024 * 1024


def v1_two_sockets_ht(root: Path) -> HostTree:
    """cgroup v1, 2 sockets x 2 cores x 2 threads, sibling = +4, one NUMA node and L3 per socket; kubepods.slice."""
    layout = {cpu: (cpu % 4 // 2, cpu % 2, cpu % 4 // 2) for cpu in range(8)}
    tree = HostTree(
        root,
        CgroupVersion.V1,
        {
            "sys": {
                "devices": {
                    "system": {
                        "cpu": {**cpus(layout), "smt": {"active": "1\n"}, "intel_pstate": {"no_turbo": "0\n"}},
                        "node": numa({0: ("0-1,4-5", 32 * GIB_KIB), 1: ("2-3,6-7", 32 * GIB_KIB)}),
                    }
                }
            },
            "proc": proc(range(8), 64 * GIB_KIB),
        },
    )
    _kubepods(tree)
    return tree


def v2_one_socket(root: Path, *, psi: bool = True, l3: bool = True) -> HostTree:
    """cgroup v2, 4 CPUs on one socket without threads, one NUMA node; kubepods.slice."""
    layout = {cpu: (0, cpu, 0) for cpu in range(4)}
    sys: dict[str, Content] = {
        "devices": {"system": {"cpu": cpus(layout, l3=l3), "node": numa({0: ("0-3", 16 * GIB_KIB)})}}
    }
    tree = HostTree(root, CgroupVersion.V2, {"sys": sys, "proc": proc(range(4), 16 * GIB_KIB, psi=psi)})
    _kubepods(tree, drop=() if psi else ("cpu.pressure", "memory.pressure", "io.pressure"))
    return tree


def v2_four_numa(root: Path) -> HostTree:
    """cgroup v2, 2 sockets with 2 NUMA nodes each, 16 CPUs without threads, one L3 per node; kubepods.slice."""
    layout = {cpu: (cpu // 8, cpu % 8, cpu // 4) for cpu in range(16)}
    nodes = {node: (f"{node * 4}-{node * 4 + 3}", 8 * GIB_KIB) for node in range(4)}
    tree = HostTree(
        root,
        CgroupVersion.V2,
        {
            "sys": {"devices": {"system": {"cpu": cpus(layout), "node": numa(nodes)}}},
            "proc": proc(range(16), 32 * GIB_KIB),
        },
    )
    _kubepods(tree)
    return tree


def v2_no_psi(root: Path) -> HostTree:
    """As v2_one_socket on a kernel without pressure accounting."""
    return v2_one_socket(root, psi=False)


def v2_no_l3(root: Path) -> HostTree:
    """As v2_one_socket in a VM that shows no L3 cache."""
    return v2_one_socket(root, l3=False)


def _kubepods(tree: HostTree, drop: tuple[str, ...] = ()) -> None:
    for target in (
        "kubepods.slice",
        "kubepods.slice/kubepods-burstable.slice",
        "kubepods.slice/kubepods-besteffort.slice",
    ):
        tree.cgroup(target, drop=drop)
