"""Pressure stall information: /proc/pressure/* and the cgroups' *.pressure files (kernel: accounting/psi.rst)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from koordlet.kernel.errors import KernelFileError, is_gone, is_unsupported
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.model.psi import Psi, PsiLine, Resource


def read_psi(path: Path) -> Psi | None:
    """None where there is no such file or PSI is switched off. Raises OSError, or KernelFileError for garbage."""
    try:
        text = path.read_text("ascii", "replace")
    except OSError as error:
        if is_gone(error) or is_unsupported(error):
            return None
        raise
    try:
        return parse_psi(text)
    except KernelFileError as error:
        raise error.at(path) from None


def parse_psi(text: str) -> Psi:
    """Lines other than some and full are left alone; raises KernelFileError without a readable `some` line."""
    found: dict[str, PsiLine] = {}
    for line in text.splitlines():
        row = _LINE.fullmatch(line.strip())
        if row:
            found[row[1]] = PsiLine(float(row[2]), float(row[3]), float(row[4]), int(row[5]))
        elif line.startswith(("some", "full")):
            raise KernelFileError("pressure", "malformed line", line)
    if "some" not in found:
        raise KernelFileError("pressure", "no some line", text)
    full = found.get("full")
    return Psi(found["some"], full or PsiLine(), full is not None)


def node_psi_path(host: Host, resource: Resource) -> Path:
    """The whole node's pressure file."""
    return host.proc_root / "pressure" / resource


def cgroup_psi_path(host: Host, target: str, resource: Resource) -> Path | None:
    """A cgroup's pressure file, None where it has none.

    v2: in the cgroup. v1: Anolis kernels keep it in the cpuacct hierarchy; hybrid hosts have it below `unified/`,
    where it counts only the processes that were put into that hierarchy too (systemd does, runtimes may not).
    """
    name = f"{resource}.pressure"
    candidates = [host.unified_dir(target)]
    if host.version is CgroupVersion.V1:
        candidates.insert(0, host.dir("cpuacct", target))
    return next((found / name for found in candidates if found is not None and (found / name).is_file()), None)


_FLOAT: Final = r"([0-9]{1,6}(?:\.[0-9]{1,6})?)"
_LINE: Final = re.compile(rf"(some|full) avg10={_FLOAT} avg60={_FLOAT} avg300={_FLOAT} total=([0-9]{{1,20}})")
