"""The runtime lab by hand: a long-lived instance, commands on standard input, Ctrl-D ends it."""

from __future__ import annotations

import contextlib
import signal
import sys

from tests.labs.runtime.cri import CriError
from tests.labs.runtime.lab import Lab, missing, running

HINT = """
{versions}; up after {started_s:.1f} s
    CRI and containerd  {cri_socket}
    NRI                 {nri_socket}
    log                 {log}
    cgroups             /sys/fs/cgroup/*/{group}/kubepods
From another shell:
    {bin}/ctr -a {cri_socket} -n k8s.io containers ls
    crictl -r unix://{cri_socket} -t 60s pods
Type here; Ctrl-D ends the lab and removes all of it:
    pod NAME [burstable|besteffort]     a pod with one sleeping container
    plugin INDEX-NAME                   an NRI plugin; it connects again after a restart
    events INDEX-NAME                   what that plugin was told
    pods | restart | crash | clear
"""


def command(lab: Lab, line: str) -> str:
    """One line of the interactive lab."""
    match line.split():
        case ["pod", name, *qos] if len(qos) < 2:
            container = lab.pod(name, *qos).container()
            return f"pid {container.pid}, cgroup {container.cgroup}"
        case ["pods"]:
            return "\n".join(f"{p.name} {p.cgroup}" for p in lab.pods) or "none"
        case ["plugin", name] if "-" in name:
            index, _, rest = name.partition("-")
            return f"process {lab.plugin(rest, index, retry_ms=500).process.pid}"
        case ["events", name]:
            return "\n".join(w for p in lab.plugins if p.path.name.endswith(name) for w in p.names()) or "none"
        case ["restart" | "crash" as how]:
            lab.kill(signal.SIGTERM if how == "restart" else signal.SIGKILL)
            lab.launch()
            return "up again"
        case ["clear"]:
            lab.clear()
            return "no pods, no plugins"
    raise ValueError("one of: pod plugin events pods restart crash clear")


def main() -> int:
    reason = missing()
    if reason:
        print(f"runtime lab: {reason}", file=sys.stderr)
        return 1
    with contextlib.suppress(KeyboardInterrupt), running() as lab:
        versions = ", ".join(f"{name} {version}" for name, version in lab.versions.items())
        print(HINT.format(**vars(lab) | {"versions": versions}), flush=True)
        for line in sys.stdin:
            try:
                print(command(lab, line), flush=True)
            except (ValueError, TimeoutError, CriError) as e:
                print(e, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
