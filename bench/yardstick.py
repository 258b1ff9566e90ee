"""The C loop that costs are held against: it reads four v1 files of every cgroup on kept descriptors, once a second.

What a machine asks for a cold pass changes from hour to hour (neighbours of a virtual machine, idle states), so a cost
in percent says little without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import statistics
import time
from collections.abc import Callable

from scratch import ROOT, ScratchNode, compile_c


def c_loop(node: ScratchNode, stack: contextlib.ExitStack) -> Callable[[], object]:
    """One pass per call, until `stack` is left."""
    library = ctypes.CDLL(str(compile_c("baseline.c", node.tmp / "baseline.so", "-shared", "-fPIC")))
    cgroups = node.tmp / "cgroups"
    cgroups.write_text("".join(f"{cgroup}\n" for cgroup in node.measured()))
    if library.baseline_open(os.fsencode(ROOT), os.fsencode(cgroups)) != 4 * len(node.measured()):
        raise SystemExit("the baseline cannot open all files; is the limit of open files high enough?")
    stack.callback(library.baseline_close)
    return library.baseline_pass  # type: ignore[no-any-return]


def c_loop_percent(node: ScratchNode, passes: int = 12) -> float:
    """What the loop takes of one core: median of paced passes, the first not counted."""
    with contextlib.ExitStack() as stack:
        return statistics.median(paced(c_loop(node, stack), passes + 1)[1:]) / 10


def paced(call: Callable[[], object], count: int) -> list[float]:
    """CPU ms of each call, one second apart."""
    found = []
    next_s = time.monotonic()
    for _ in range(count):
        next_s += 1.0
        time.sleep(max(0.0, next_s - time.monotonic()))
        begun_ns = time.thread_time_ns()
        call()
        found.append((time.thread_time_ns() - begun_ns) / 1e6)
    return found
