"""How long a runtime waits for the agent, and what that does to the start of a pod.

    python bench/hook_latency.py [--pods 10,110,250] [--events 300] [--pairs 20] [--output table|json]

First the time of one call through the real sockets, NRI and gRPC, of the real `koordlet run` on a scratch node of N
pods that it measures and caps meanwhile, and in turn with it of the same call to an idle gRPC server that only echoes:
what gRPC costs here without us. Then pod starts in the runtime lab, with and without the agent as
containerd's plugin. README.md has the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import grpc
from process import Agent
from scratch import ScratchNode, why_not

from koordlet.wire import hook_pb2 as hook
from koordlet.wire import nri_pb2 as nri
from tests.labs.runtime import agent as lab_agent
from tests.labs.runtime.lab import Lab, missing, running
from tests.unit.doors.nri_runtime import Listener, Runtime

BUDGET_MS = 10.0
START_BUDGET = 0.03
GAP_S = (0.002, 0.02)
"""Between two calls, at random: a tick of the agent, which is in the way, must not stay in step with them."""
STATUS = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"0"}'}
SERVICE = "/runtime.v1alpha1.RuntimeHookService"
AS_USUAL, AHEAD = ("chrt", "--other", "0"), ("chrt", "--rr", "1")
"""How the servers run. The measuring process always runs ahead of everybody."""
ECHO = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
echo = grpc.unary_unary_rpc_method_handler(lambda data, context: data)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", {"Say": echo}),))
server.add_insecure_port(f"unix:{sys.argv[1]}")
server.start()
print("up", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Latency:
    """p99_ratio: to the p99 of the echo server in the same run, of gRPC calls."""

    pods: int
    door: str
    event: str
    calls: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    p99_ratio: float | None = None


@dataclass(frozen=True)
class Starts:
    """Medians of `pairs` pod starts each; added: median over pairs of with / without - 1."""

    pairs: int
    without_s: float
    with_s: float
    added: float


def main() -> int:
    args = _arguments()
    if reason := why_not():
        print(f"bench/hook_latency.py: {reason}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was made is removed
    latencies = [
        row
        for pods in args.pods.split(",")
        for row in measure(int(pods), args.events, AHEAD if args.ahead else AS_USUAL)
    ]
    starts = None
    if args.pairs and (reason := missing()):
        print(f"bench/hook_latency.py: no pod starts: {reason}", file=sys.stderr)
    elif args.pairs:
        starts = measure_starts(args.pairs)
    if args.output == "json":
        found = {"latencies": [asdict(row) for row in latencies], "starts": asdict(starts) if starts else None}
        print(json.dumps({"load_average": os.getloadavg(), **found}, indent=2))
    else:
        _print(latencies, starts)
    slow = any(row.p99_ms > BUDGET_MS for row in latencies if row.pods == 110)
    return int(slow or (starts is not None and starts.added > START_BUDGET))


def measure(pods: int, events: int, how: tuple[str, ...]) -> list[Latency]:
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    with (
        contextlib.closing(ScratchNode(pods)) as node,
        contextlib.closing(Listener(node.tmp / "nri/nri.sock")) as nri_door,
    ):
        (node.tmp / "hook").mkdir()
        flags = (
            f"--pods={node.tmp}/pods.json",
            *("--mode=standalone", f"-runtime-hooks-nri-socket-path={nri_door.path}"),
            *(f"-runtime-hooks-addr={node.tmp}/hook/k.sock", f"-runtime-hooks-config-path={node.tmp}/hook"),
        )
        with (
            contextlib.closing(Agent(node, cap=True, args=flags, wrap=lambda argv: [*how, *argv])) as agent,
            _echo_server(node.tmp / "echo.sock", how),
        ):
            agent.await_ready()
            runtime = nri_door.plugin()
            calls = list(_calls(node))
            runtime.handshake()
            time.sleep(2.0)
            with (
                _ahead(),
                grpc.insecure_channel(f"unix:{node.tmp}/hook/k.sock") as channel,
                grpc.insecure_channel(f"unix:{node.tmp}/echo.sock") as beside,
            ):
                proxy = channel.unary_unary(f"{SERVICE}/PreCreateContainerHook")
                echo = beside.unary_unary("/Echo/Say")
                random.seed(pods)
                for number in range(events):
                    _life(runtime, proxy, echo, *calls[number % len(calls)], took, warm=number < 5)
    rows = {key: _latency(pods, *key, seconds) for key, seconds in took.items()}
    floor = rows["echo", "Say"]
    return [replace(row, p99_ratio=row.p99_ms / floor.p99_ms) if row.door == "gRPC" else row for row in rows.values()]


@contextlib.contextmanager
def _echo_server(path: Path, how: tuple[str, ...]) -> Iterator[None]:
    child = subprocess.Popen(
        [*how, sys.executable, "-c", ECHO, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield
    finally:
        child.communicate()


@contextlib.contextmanager
def _ahead() -> Iterator[None]:
    """This process and the threads that it starts are not kept waiting for a CPU: a runtime's own delay is not ours."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _calls(node: ScratchNode) -> Iterator[tuple[Any, Any, bytes]]:
    """Every pod of the node: its sandbox and a container of it for NRI, the same as a request of the proxy."""
    for item in node.items():
        metadata, status = item["metadata"], item["status"]["containerStatuses"][0]
        qos_dir = item["status"]["qosClass"].lower()
        cgroup = f"{node.root}/kubepods/{qos_dir}/pod{metadata['uid']}"
        bare = status["containerID"].partition("://")[2]
        annotations = STATUS if metadata["labels"]["koordinator.sh/qosClass"] == "LS" else {}
        sandbox = nri.PodSandbox(
            id=f"sb-{metadata['uid']}",
            name=metadata["name"],
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            labels=metadata["labels"],
            annotations=annotations,
            linux=nri.LinuxPodSandbox(cgroup_parent=f"/{cgroup}"),
        )
        resources = nri.LinuxResources(cpu=nri.LinuxCPU(shares=nri.OptionalUInt64(value=512)))
        container = nri.Container(
            id=bare,
            pod_sandbox_id=sandbox.id,
            name=status["name"],
            env=[f"SETTING_{number}=a value of some length" for number in range(30)],
            linux=nri.LinuxContainer(cgroups_path=f"/{cgroup}/{bare}", resources=resources),
        )
        request = hook.ContainerResourceHookRequest(
            pod_meta=hook.PodSandboxMetadata(name=sandbox.name, uid=sandbox.uid, namespace=sandbox.namespace),
            container_meta=hook.ContainerMetadata(name=container.name),
            container_resources=hook.LinuxContainerResources(cpu_shares=512),
            pod_annotations=annotations,
            pod_labels=metadata["labels"],
            pod_cgroup_parent=f"/{cgroup}",
        )
        yield sandbox, container, request.SerializeToString()


def _life(
    runtime: Runtime,
    proxy: Callable[[bytes], bytes],
    echo: Callable[[bytes], bytes],
    sandbox: Any,
    container: Any,
    request: bytes,
    took: dict[tuple[str, str], list[float]],
    warm: bool,
) -> None:
    """The calls of one pod's life, as a runtime makes them one after the other, then the proxy's."""
    both = {"pod": sandbox, "container": container}
    told: list[tuple[str, Any]] = [
        ("RunPodSandbox", nri.PodRequest(pod=sandbox)),
        ("CreateContainer", nri.CreateContainerRequest(**both)),
        ("PostStartContainer", nri.ContainerRequest(**both)),
        ("UpdateContainer", nri.UpdateContainerRequest(**both, linux_resources=container.linux.resources)),
        ("RemoveContainer", nri.ContainerRequest(**both)),
        ("RemovePodSandbox", nri.PodRequest(pod=sandbox)),
    ]
    for name, message in told:
        time.sleep(random.uniform(*GAP_S))
        began_s = time.perf_counter()
        code, text, _ = runtime.ask(name, message)
        seconds = time.perf_counter() - began_s
        if code:
            raise SystemExit(f"{name}: {text}")
        if not warm:
            took["NRI", name].append(seconds)
    for key, call in ((("gRPC", "PreCreateContainer"), proxy), (("echo", "Say"), echo)):
        time.sleep(random.uniform(*GAP_S))
        began_s = time.perf_counter()
        call(request)
        if not warm:
            took[key].append(time.perf_counter() - began_s)


def _latency(pods: int, door: str, event: str, seconds: list[float]) -> Latency:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    middle = statistics.median(ordered)
    return Latency(pods, door, event, len(ordered), 1e3 * middle, 1e3 * p99, 1e3 * ordered[-1])


def measure_starts(pairs: int) -> Starts:
    """Blocks of five, without the agent and with it in turn, so that a slow minute of the machine falls on both."""
    without: list[float] = []
    beside: list[float] = []
    with running() as lab:
        _start(lab, "first")  # the first pod of a lab is slower
        while len(beside) < pairs:
            without += [_start(lab, f"a{len(without) + n}") for n in range(5)]
            agent = lab_agent.Agent(lab).start()
            try:
                time.sleep(2.0)  # its own start is over
                beside += [_start(lab, f"b{len(beside) + n}") for n in range(5)]
            finally:
                agent.close()
    ratios = [b / a for a, b in zip(without, beside, strict=True)]
    middle = (statistics.median(without), statistics.median(beside))
    return Starts(len(ratios), *middle, statistics.median(ratios) - 1)


def _start(lab: Lab, name: str) -> float:
    """Seconds from RunPodSandbox to the return of StartContainer."""
    began_s = time.perf_counter()
    pod = lab_agent.lsr_pod(lab, name, cpuset=f"0-{(os.cpu_count() or 1) - 1}")  # all, or it would start slower
    pod.container(resources={"cpu_shares": 1024, "cpu_quota": 100_000, "cpu_period": 100_000})
    seconds = time.perf_counter() - began_s
    pod.remove()
    lab.pods.remove(pod)
    return seconds


def _print(latencies: list[Latency], starts: Starts | None) -> None:
    print(f"milliseconds per call; load average {os.getloadavg()[0]:.2f}")
    print(f"{'pods':>5} {'door':>5} {'event':<20} {'calls':>6} {'p50':>7} {'p99':>7} {'worst':>7}")
    for row in latencies:
        print(
            f"{row.pods:>5} {row.door:>5} {row.event:<20} {row.calls:>6} {row.p50_ms:>7.2f} {row.p99_ms:>7.2f}"
            f" {row.worst_ms:>7.2f}" + (f"  p99 {row.p99_ratio:.1f} x echo" if row.p99_ratio is not None else "")
        )
    if starts is not None:
        medians = f"{starts.without_s:.3f} s without the agent, {starts.with_s:.3f} s with it"
        print(f"pod start, median of {starts.pairs}: {medians}; median of pairs {100 * starts.added:+.1f} %")


def _arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", default="10,110,250", help="comma-separated numbers of pods, two containers each")
    parser.add_argument("--events", type=int, default=300, help="pod lives per number of pods")
    parser.add_argument("--pairs", type=int, default=20, help="pod starts with and without the agent, 0 for none")
    parser.add_argument("--ahead", action="store_true", help="agent and echo under SCHED_RR too, beside another load")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
