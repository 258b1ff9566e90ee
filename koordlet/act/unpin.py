"""What stands for an empty cgroup v2 CPU or node list that the kernel does not let us write back.

Once such a list is set, the kernel refuses to empty it (ENOSPC) while processes run in the cgroup or below it. All CPUs
that the machine could ever have mean the same: what is in force is their intersection with the parent's set.
"""

from __future__ import annotations

import errno
from typing import Final

from koordlet.act.job import Job
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.model.knob import Knob

_POSSIBLE: Final = {
    Knob.CPUSET: "devices/system/cpu/possible",
    Knob.CPUSET_MEMS: "devices/system/node/possible",
}


def everything(host: Host, job: Job) -> bytes | None:
    """What to write instead of the original that was refused; None where the refusal means something else."""
    if host.version is not CgroupVersion.V2 or not job.restoring or job.data.strip() or job.errno != errno.ENOSPC:
        return None
    file = _POSSIBLE.get(job.knob)
    try:
        return (host.sys_root / file).read_bytes().strip() or None if file else None
    except OSError:
        return None
