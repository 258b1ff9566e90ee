"""Every command-line flag: the reference's own (spec/api 4.1) and ours. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """How Go reads the value."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    TEXT = "string"
    DURATION = "duration"
    MAP = "map"


LONGEST_S: Final = 86_400.0
"""Longest interval or time-out; the kernel's own end at 24 days."""


class Status(StrEnum):
    USED = "used"
    IGNORED = "ignored"  # no effect, and none is missing


@dataclass(frozen=True, slots=True)
class Flag:
    """default: text as typed on the command line; host, standalone: where those modes differ from it.

    k8s: giving it means that a cluster is there. low: least value, in the flag's unit (seconds for durations,
    which are then bounded by `high`, too).
    choices: the only texts allowed.
    """

    name: str
    kind: Kind
    default: str
    help: str
    status: Status = Status.USED
    host: str | None = None
    standalone: str | None = None
    k8s: bool = False
    low: float | None = None
    high: float = LONGEST_S
    choices: tuple[str, ...] = ()

    def default_in(self, mode: str) -> str:
        """mode: daemonset, host or standalone (which is also a host mode)."""
        if mode == "standalone" and self.standalone is not None:
            return self.standalone
        return self.default if mode == "daemonset" or self.host is None else self.host


_B, _I, _F, _T, _D = Kind.BOOL, Kind.INT, Kind.FLOAT, Kind.TEXT, Kind.DURATION
_NONE = Status.IGNORED
_YEAR_S = 366 * LONGEST_S
_KLOG = "klog's; logs go to standard error as structured lines"

FLAGS: Final = (
    # Ours.
    Flag("mode", _T, "auto", "auto: standalone unless NODE_NAME is set or a cluster flag is given",
         choices=("auto", "k8s", "standalone")),
    Flag("workloads", _T, "", "FILE|DIR of workload declarations (LocalWorkloadList)",
         standalone="/etc/koordlet/local.d"),
    Flag("policy", _T, "", "FILE with a NodeSLO object or its spec, YAML or JSON; followed while running",
         standalone="/etc/koordlet/nodeslo.yaml"),
    Flag("pods", _T, "", "FILE|URL of a kubelet's pod list, such as http://127.0.0.1:10255/pods/"),
    Flag("node", _T, "", "FILE with node facts: annotations, capacity override, reserved",
         standalone="/etc/koordlet/node.yaml"),
    Flag("cgroup-root", _T, "/", "PATH below which the kubelet makes its cgroups (its cgroupRoot)"),
    Flag("cgroup-driver", _T, "auto", "who names the kubelet's cgroups", choices=("auto", "systemd", "cgroupfs")),
    Flag("observe", _B, "false", "measure and decide, but write nothing"),
    Flag("identity", _B, "true", "give best-effort groups their low weight (cpu.idle or shares)"),
    Flag("idle-on-be-pods", _B, "false", "cpu.idle on a kubelet's best-effort pods too, beside it only with NRI"),
    Flag("cpuset-mems", _T, "keep", "memory of workloads with CPUs of their own: bind new pages to their NUMA "
         "nodes, or migrate all of it", choices=("keep", "bind", "migrate")),
    Flag("lse-partition", _T, "member", "cgroup v2 cpuset partition of declared LSE workloads",
         choices=("member", "root", "isolated")),
    Flag("irq-isolation", _B, "false", "keep interrupts off the CPUs of LSE workloads"),
    Flag("numa-balancing-off", _B, "false", "no automatic NUMA balancing (kernel.numa_balancing) while -cpuset-mems "
         "binds a workload's memory"),
    Flag("enable-resctrl-collector", _B, "false", "collect cache occupancy and memory bandwidth of classes and pods "
         "(with gate ResctrlCollector)"),
    Flag("resctrl-collector-interval", _D, "10s", "its interval", low=1),
    Flag("cpi-collector-interval", _D, "60s", "interval of counting cycles per instruction of containers (with gate "
         "CPICollector)", low=1),
    Flag("collect-cpi-timewindow", _D, "10s", "window of one count; as long as the interval: always on", low=1),
    Flag("resctrl-mount", _B, "false", "mount resctrl at the start when nobody has; unmounted again by undo"),
    Flag("resctrl-dynamic", _B, "false", "shrink the cache and bandwidth of best effort while an online workload is "
         "slower than its baseline (needs resctrl)"),
    Flag("mba-amd-units", _I, "160", "eighths of GB/s that 100 percent of memory bandwidth are on AMD", low=1),
    # In a pod a directory that every koordlet DaemonSet mounts: what must outlive the container.
    Flag("state-dir", _T, "/host-var-run-koordlet/state", "DIR of the restore journal", host="/var/lib/koordlet"),
    Flag("run-dir", _T, "/run/koordlet", "DIR of the command socket"),
    Flag("restore-on-exit", _T, "restore", "what a clean stop does with written values", choices=("restore", "keep")),
    Flag("stale-floor-percent", _I, "10", "percent of the node left to best effort when data is old and the policy "
         "names no cpuSuppressMinPercent", low=0),
    Flag("log-format", _T, "text", "log lines as text or JSON", choices=("text", "json")),
    # HTTP and roots.
    Flag("addr", _T, ":9316", "address of the HTTP server", standalone="127.0.0.1:9316"),
    Flag("tls-cert-file", _T, "", "FILE with a certificate: the HTTP server then speaks TLS; followed while running"),
    Flag("tls-private-key-file", _T, "", "FILE with its key"),
    Flag("auth-token-file", _T, "", "FILE with a bearer token that the HTTP server asks for, but for /healthz and "
         "/readyz; followed while running"),
    Flag("feature-gates", Kind.MAP, "", "name=true|false list; AllAlpha and AllBeta switch a whole stage"),
    Flag("cgroup-root-dir", _T, "/host-cgroup/", "cgroup file system", host="/sys/fs/cgroup/"),
    Flag("sys-root-dir", _T, "/host-sys/", "/sys", host="/sys/"),
    Flag("sys-fs-root-dir", _T, "/host-sys-fs/", "/sys/fs", host="/sys/fs/"),
    Flag("proc-root-dir", _T, "/proc/", "/proc"),
    Flag("var-run-root-dir", _T, "/host-var-run/", "/var/run", host="/var/run/"),
    Flag("run-root-dir", _T, "/host-run/", "/run", host="/run/"),
    Flag("var-lib-kubelet-dir", _T, "/var/lib/kubelet/", "the kubelet's directory"),
    # The cluster.
    Flag("kubeconfig", _T, "", "FILE with the cluster's address and credentials; empty: $KUBECONFIG, the pod's own "
         "account, ~/.kube/config", k8s=True),
    Flag("kube-api-qps", _F, "20", "request rate to the API server, 0 for no limit", k8s=True, low=0),
    Flag("kube-api-burst", _I, "30", "request burst to the API server", k8s=True, low=1),
    # The kubelet.
    Flag("kubelet-preferred-address-type", _T, "InternalIP", "which of the Node's addresses the kubelet has",
         k8s=True),
    Flag("kubelet-certificate-authority", _T, "", "FILE with the authority of the kubelet's certificate; empty: the "
         "cluster's"),
    Flag("kubelet-insecure-skip-verify", _B, "false", "trust any certificate of the kubelet"),
    Flag("kubelet-sync-interval", _D, "10s", "interval of asking for the pod list", k8s=True, low=0.2),
    Flag("kubelet-sync-timeout", _D, "3s", "time-out of one answer", k8s=True, low=0.1),
    Flag("kubelet-insecure-tls", _B, "false", "ask for pods (unless --pods is given) and configuration at the plain "
         "read-only port of this host", k8s=True),
    Flag("kubelet-read-only-port", _I, "10255", "that port", k8s=True, low=1),
    Flag("disable-query-kubelet-config", _B, "false", "do not ask the kubelet for its configuration", k8s=True),
    # Reports.
    Flag("enable-node-metric-report", _B, "true", "report NodeMetric", k8s=True),
    Flag("collect-sys-metric-outdated-interval", _D, "10s", "age at which the node's CPU usage gives no system usage",
         low=1),
    Flag("enable-pagecache-collector", _B, "false", "sample memory with page cache always, and not only while a "
         "NodeMetric asks for it"),
    Flag("prediction-checkpoint-filepath", _T, "/prediction-checkpoints", "DIR of prediction state"),
    Flag("prediction-cold-start-duration", _D, "24h", "a younger pod is not predicted", low=0, high=_YEAR_S),
    Flag("prediction-safety-margin-percent", _I, "10", "on top of every predicted peak", low=0),
    Flag("prediction-memory-histogram-decay-halflife", _D, "24h", "memory usage counts half after it", low=60,
         high=_YEAR_S),
    Flag("prediction-cpu-histogram-decay-halflife", _D, "12h", "CPU usage counts half after it", low=60, high=_YEAR_S),
    Flag("prediction-training-interval", _D, "1m", "interval of training", low=1),
    Flag("prediction-model-expiration-duration", _D, "30m", "life of an unused model", low=1),
    Flag("prediction-model-checkpoint-interval", _D, "10m", "interval of checkpoints of one model", low=1),
    Flag("prediction-model-checkpoint-max-per-step", _I, "12", "checkpoints written after one training", low=1),
    Flag("node-topology-sync-interval", _D, "3s", "interval of looking whether the topology or the devices changed; "
         "0 for no such reports", k8s=True),
    Flag("xpu-device-infos-dir", _T, "/var/run/koordlet/xpu-device-infos/", "DIR of files that describe accelerators"),
    Flag("xpu-enforce-collect-from-device-infos", _B, "false", "report accelerators from those files only"),
    Flag("pod-resources-proxy-path", _T, "/var/run/koordlet/pod-resources", "DIR of the pod-resources proxy's socket",
         k8s=True),
    # Intervals.
    Flag("collect-res-used-interval", _D, "1s", "sampling interval", low=0.1),
    Flag("psi-collector-interval", _D, "10s", "interval of reading pressure for status and metrics", low=1),
    Flag("collect-node-cpu-info-interval", _D, "60s", "interval of reading the CPU topology again", low=1),
    Flag("cpu-suppress-interval-seconds", _I, "1", "interval of the suppress loop", low=1),
    Flag("reconcile-interval-seconds", _I, "1", "interval of CPU burst and of the memory, block I/O and system "
         "reconcilers", low=1),
    Flag("resource-force-update-seconds", _I, "60", "a written value is read back and repaired after this", low=1),
    # Pods.
    Flag("disable-unset-cpu-quota", _B, "false", "keep the quota of pods with CPUs of their own", k8s=True),
    Flag("hami-core-library-directory-path", _T, "/usr/local/vgpu/libvgpu.so", "library that shares a GPU"),
    # Eviction.
    Flag("cpu-evict-interval-seconds", _I, "1", "interval of CPU eviction", low=1),
    Flag("cpu-evict-cool-time-seconds", _I, "20", "pause after a CPU eviction", low=0),
    Flag("memory-evict-interval-seconds", _I, "1", "interval of memory eviction", low=1),
    Flag("memory-evict-cool-time-seconds", _I, "4", "pause after a memory eviction", low=0),
    Flag("only-evict-by-api", _B, "false", "evict through the API server alone, whatever -evict-by says", k8s=True),
    Flag("evict-by", _T, "auto", "auto: the API server for a kubelet's pods, the kernel for declared workloads; api: "
         "the API server alone; kill: end the containers' processes at once, and tell the API server; cri: the "
         "container runtime stops them, and the API server is told",
         choices=("auto", "api", "kill", "cri")),
    Flag("cri-socket", _T, "/run/containerd/containerd.sock", "socket of the container runtime, for -evict-by=cri"),
    Flag("memory-ladder", _B, "false", "before evicting for memory: reclaim best effort's page cache, hold it by "
         "memory.high, stop the largest (cgroup v2)", standalone="true"),
    Flag("memory-watch", _B, "true", "look at the node's memory every 20 ms while it is near a line of the policy"),
    Flag("evict-min-age", _D, "0s", "younger pods are spared", low=0),
    # The container runtime's doors.
    Flag("runtime-hooks-network", _T, "unix", "network of the hook server", k8s=True, choices=("unix",)),
    Flag("runtime-hooks-addr", _T, "/host-var-run-koordlet/koordlet.sock", "socket of the hook server that "
         "koord-runtime-proxy asks, where its directory exists; empty for none", standalone="", k8s=True),
    Flag("runtime-hooks-host-endpoint", _T, "/var/run/koordlet/koordlet.sock", "the same, as the proxy sees it",
         k8s=True),
    Flag("runtime-hooks-failure-policy", _T, "Ignore", "what the proxy does when the hook server fails", k8s=True,
         choices=("Fail", "Ignore")),
    Flag("runtime-hooks-plugin-failure-policy", _T, "Ignore", "what becomes of a pod when a hook fails: it fails too, "
         "or goes on unchanged", k8s=True, choices=("Fail", "Ignore")),
    Flag("runtime-hooks-config-path", _T, "/host-etc-hookserver/",
         "DIR of the proxy's configuration, where we register", host="/etc/runtime/hookserver.d", k8s=True),
    Flag("runtime-hooks-disable-stages", _T, "", "comma list of stages at which nothing is changed", k8s=True),
    Flag("default-runtime-type", _T, "containerd", "runtime behind the proxy",
         choices=("containerd", "docker", "cri-o", "pouch")),
    Flag("enable-nri-runtime-hook", _B, "true", "connect to the runtime's NRI socket, when there is one"),
    Flag("runtime-hooks-nri-socket-path", _T, "nri/nri.sock", "that socket, below var-run-root-dir"),
    Flag("runtime-hooks-nri-plugin-name", _T, "koordlet_nri", "our name as an NRI plugin"),
    Flag("runtime-hooks-nri-plugin-index", _T, "00", "our place in the chain of NRI plugins"),
    Flag("runtime-hooks-nri-connect-timeout", _D, "6s", "an NRI connection that lives for so long is a good one"),
    Flag("runtime-hooks-nri-backoff-duration", _D, "1s", "first wait after NRI connections that were not", low=0.01),
    Flag("runtime-hooks-nri-backoff-factor", _F, "2", "growth of that wait", low=1),
    Flag("runtime-hooks-nri-backoff-cap", _D, "4611686018427387903ns", "longest such wait, never more than 30 s"),
    Flag("runtime-hooks-nri-backoff-steps", _I, "2147483647", "after so many the wait grows no more", low=0),
    # Audit.
    Flag("audit-log-dir", _T, "/var/log/koordlet", "DIR of the audit log"),
    Flag("audit-verbose", _I, "3", "level up to which events are kept, 0 keeps all", low=0),
    Flag("audit-max-disk-space-mb", _I, "16", "size of all audit files together", low=1),
    Flag("audit-max-concurrent-readers", _I, "4", "readers of /events at a time", low=1),
    Flag("audit-max-events-limit", _I, "2048", "events per page of /events", low=1),
    Flag("v", _I, "0", "log level: 5 and above is debug"),
    # Ignored.
    Flag("enable-pod-taskids", _B, "false", "threads are found where they are put into cache groups", _NONE),
    Flag("qos-extension-plugins", Kind.MAP, "", "there are no extension plugins", _NONE),
    Flag("containerd-endpoint", _T, "", "a runtime is asked for -evict-by=cri alone, on -cri-socket", _NONE),
    Flag("docker-endpoint", _T, "", "a runtime is asked for -evict-by=cri alone, on -cri-socket", _NONE),
    Flag("pouch-endpoint", _T, "", "a runtime is asked for -evict-by=cri alone, on -cri-socket", _NONE),
    Flag("collect-node-storage-info-interval", _D, "1s", "disks are looked up when somebody names one, then every 10 s",
         _NONE),
    Flag("coldpage-collector-interval", _D, "5s", "cold pages are read with the memory they are part of, every 10 s",
         _NONE),
    Flag("runtime-hooks-reconcile-interval", _D, "10s", "pods are put right each tick", _NONE, k8s=True),
    Flag("enable-pprof", _B, "false", "Go profiles; there are none here", _NONE),
    Flag("pprof-addr", _T, ":9317", "Go profiles; there are none here", _NONE),
    Flag("configmap-name", _T, "koordlet-config", "unused in the reference too", _NONE),
    Flag("configmap-namespace", _T, "koordinator-system", "unused in the reference too", _NONE),
    Flag("report-interval", _D, "0", "unused in the reference too", _NONE),
    Flag("metric-gc-interval-seconds", _I, "300", "samples live in rings of fixed size", _NONE),
    Flag("metric-expire-seconds", _I, "1800", "samples live in rings of fixed size", _NONE),
    Flag("tsdb-path", _T, "/metric-data/", "samples live in rings of fixed size", _NONE),
    Flag("tsdb-retention-duration", _D, "12h", "samples live in rings of fixed size", _NONE),
    Flag("tsdb-enable-prometheus-metric", _B, "true", "there is no TSDB", _NONE),
    Flag("tsdb-stripe-size", _I, "16384", "there is no TSDB", _NONE),
    Flag("tsdb-max-bytes", _I, "104857600", "there is no TSDB", _NONE),
    Flag("tsdb-wal-segment-size", _I, "1048576", "there is no TSDB", _NONE),
    Flag("tsdb-max-block-chunk-segment-size", _I, "5242880", "there is no TSDB", _NONE),
    Flag("tsdb-min-block-duration", _D, "10m", "there is no TSDB", _NONE),
    Flag("tsdb-max-block-duration", _D, "10m", "there is no TSDB", _NONE),
    Flag("tsdb-head-chunks-write-buffer-size", _I, "1048576", "there is no TSDB", _NONE),
    Flag("vmodule", _T, "", _KLOG, _NONE),
    Flag("logtostderr", _B, "true", _KLOG, _NONE),
    Flag("alsologtostderr", _B, "false", _KLOG, _NONE),
    Flag("stderrthreshold", _T, "INFO", _KLOG, _NONE),
    Flag("log_dir", _T, "", _KLOG, _NONE),
    Flag("log_file", _T, "", _KLOG, _NONE),
    Flag("log_file_max_size", _I, "1800", _KLOG, _NONE),
    Flag("skip_headers", _B, "false", _KLOG, _NONE),
    Flag("skip_log_headers", _B, "false", _KLOG, _NONE),
    Flag("add_dir_header", _B, "false", _KLOG, _NONE),
    Flag("one_output", _B, "false", _KLOG, _NONE),
    Flag("log_backtrace_at", _T, "", _KLOG, _NONE),
)  # fmt: skip
