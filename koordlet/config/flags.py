"""The command line, in Go's flag syntax, so that the reference's DaemonSet arguments work unchanged (spec/api 4.1)."""

from __future__ import annotations

import difflib
import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordlet.config.errors import UsageError
from koordlet.config.flagtable import FLAGS, Flag, Kind, Status
from koordlet.config.flagvalues import Value, Values, parsed
from koordlet.config.gates import Gates, parse_gates
from koordlet.config.hookflags import HookFlags, read_hook_flags
from koordlet.model.pinning import MemsMode, Partition, PinOptions


class HelpRequested(Exception):  # noqa: N818 - not an error
    """`-h`, `-help`: print help_text and end with 0."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags in use. Empty paths are "not given". given: names of all flags on the command line.

    warnings: one per flag that asks for what has no effect, and what else the operator should know.
    """

    standalone: bool
    host_mode: bool
    node_name: str
    gates: Gates
    audit: bool
    pods: str
    workloads: Path | None
    policy: Path | None
    node: Path | None
    cgroup_root: str
    cgroup_driver: str
    observe: bool
    identity: bool
    idle_on_be_pods: bool
    pinning: PinOptions
    state_dir: Path
    run_dir: Path
    restore_on_exit: bool
    stale_floor_percent: int
    enable_resctrl_collector: bool
    resctrl_collector_interval_s: float
    cpi_collector_interval_s: float
    collect_cpi_timewindow_s: float
    resctrl_mount: bool
    resctrl_dynamic: bool
    mba_amd_units: int
    disable_unset_cpu_quota: bool
    hami_library: str
    hooks: HookFlags
    log_format: str
    log_level: int
    addr: str
    cgroup_root_dir: Path
    sys_root_dir: Path
    sys_fs_root_dir: Path
    proc_root_dir: Path
    var_run_root_dir: Path
    run_root_dir: Path
    var_lib_kubelet_dir: Path
    kubelet_sync_interval_s: float
    kubelet_sync_timeout_s: float
    collect_res_used_interval_s: float
    collect_node_cpu_info_interval_s: float
    cpu_suppress_interval_s: float
    reconcile_interval_s: float
    resource_force_update_s: float
    cpu_evict_interval_s: float
    cpu_evict_cool_s: float
    memory_evict_interval_s: float
    memory_evict_cool_s: float
    only_evict_by_api: bool
    evict_by: str
    cri_socket: Path
    evict_min_age_s: float
    memory_ladder: bool
    memory_watch: bool
    audit_log_dir: Path
    audit_verbose: int
    audit_max_disk_space_bytes: int
    kubeconfig: str
    kube_api_qps: float
    kube_api_burst: int
    kubelet_preferred_address_type: str
    kubelet_certificate_authority: str | None
    kubelet_insecure_skip_verify: bool
    enable_node_metric_report: bool
    audit_max_concurrent_readers: int = 4
    audit_max_events_limit: int = 2048
    tls_cert_file: str = ""
    tls_private_key_file: str = ""
    auth_token_file: str = ""
    node_topology_sync_interval_s: float = 3.0
    collect_sys_metric_outdated_interval_s: float = 10.0
    psi_collector_interval_s: float = 10.0
    enable_pagecache_collector: bool = False
    prediction_checkpoint_filepath: Path | None = None
    prediction_cold_start_s: float = 86_400.0
    prediction_safety_margin_percent: int = 10
    prediction_memory_half_life_s: float = 86_400.0
    prediction_cpu_half_life_s: float = 43_200.0
    prediction_training_interval_s: float = 60.0
    prediction_model_expiration_s: float = 1800.0
    prediction_checkpoint_interval_s: float = 600.0
    prediction_checkpoints_per_step: int = 12
    kubelet_plain_url: str = ""
    disable_query_kubelet_config: bool = False
    xpu_device_infos_dir: Path = Path("/var/run/koordlet/xpu-device-infos")
    xpu_enforce_collect_from_device_infos: bool = False
    pod_resources_proxy_path: Path = Path("/var/run/koordlet/pod-resources")
    given: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


def parse(argv: list[str], env: Mapping[str, str]) -> Flags:
    """Flags of a command line (without the program's name) and an environment.

    Environment: NODE_NAME, and agent_mode=hostMode for host paths. Raises UsageError and HelpRequested.
    """
    given = _split(argv)
    standalone = _standalone(given, env)
    host_mode = standalone or env.get("agent_mode") == "hostMode"
    if not standalone and not env.get("NODE_NAME"):
        raise UsageError("environment variable NODE_NAME is empty; without a cluster use --mode standalone")
    mode = "standalone" if standalone else "host" if host_mode else "daemonset"
    read = Values({flag.name: _value(flag, given, mode) for flag in FLAGS})
    gates = parse_gates(read.text("feature-gates"))
    if bool(read.text("tls-cert-file")) != bool(read.text("tls-private-key-file")):
        raise UsageError("flags -tls-cert-file and -tls-private-key-file: one without the other")
    pods, plain = read.text("pods"), ""
    if read.switch("kubelet-insecure-tls"):
        plain = f"http://127.0.0.1:{read.number('kubelet-read-only-port')}"
        pods = pods or f"{plain}/pods/"
    return Flags(
        standalone=standalone,
        host_mode=host_mode,
        node_name=env.get("NODE_NAME") or os.uname().nodename,
        gates=gates,
        audit=standalone or "AuditEvents" in gates.enabled,
        pods=pods,
        workloads=read.path_or_none("workloads"),
        policy=read.path_or_none("policy"),
        node=read.path_or_none("node"),
        cgroup_root=read.text("cgroup-root"),
        cgroup_driver=read.text("cgroup-driver"),
        observe=read.switch("observe"),
        identity=read.switch("identity"),
        idle_on_be_pods=read.switch("idle-on-be-pods"),
        pinning=PinOptions(
            mems=MemsMode(read.text("cpuset-mems")),
            partition=Partition(read.text("lse-partition")),
            irq=read.switch("irq-isolation"),
            balancing_off=read.switch("numa-balancing-off"),
        ),
        state_dir=read.path("state-dir"),
        run_dir=read.path("run-dir"),
        restore_on_exit=read.text("restore-on-exit") == "restore",
        stale_floor_percent=read.number("stale-floor-percent", high=100),
        enable_resctrl_collector=read.switch("enable-resctrl-collector"),
        resctrl_collector_interval_s=read.seconds("resctrl-collector-interval"),
        cpi_collector_interval_s=read.seconds("cpi-collector-interval"),
        collect_cpi_timewindow_s=read.seconds("collect-cpi-timewindow"),
        resctrl_mount=read.switch("resctrl-mount"),
        resctrl_dynamic=read.switch("resctrl-dynamic"),
        mba_amd_units=read.number("mba-amd-units", high=65536),
        disable_unset_cpu_quota=read.switch("disable-unset-cpu-quota"),
        hami_library=read.text("hami-core-library-directory-path"),
        hooks=read_hook_flags(read),
        log_format=read.text("log-format"),
        log_level=read.number("v"),
        addr=read.addr("addr"),
        cgroup_root_dir=read.path("cgroup-root-dir"),
        sys_root_dir=read.path("sys-root-dir"),
        sys_fs_root_dir=read.path("sys-fs-root-dir"),
        proc_root_dir=read.path("proc-root-dir"),
        var_run_root_dir=read.path("var-run-root-dir"),
        run_root_dir=read.path("run-root-dir"),
        var_lib_kubelet_dir=read.path("var-lib-kubelet-dir"),
        kubelet_sync_interval_s=read.seconds("kubelet-sync-interval"),
        kubelet_sync_timeout_s=read.seconds("kubelet-sync-timeout"),
        collect_res_used_interval_s=read.seconds("collect-res-used-interval"),
        collect_node_cpu_info_interval_s=read.seconds("collect-node-cpu-info-interval"),
        cpu_suppress_interval_s=float(read.number("cpu-suppress-interval-seconds")),
        reconcile_interval_s=float(read.number("reconcile-interval-seconds")),
        resource_force_update_s=float(read.number("resource-force-update-seconds")),
        cpu_evict_interval_s=float(read.number("cpu-evict-interval-seconds")),
        cpu_evict_cool_s=float(read.number("cpu-evict-cool-time-seconds")),
        memory_evict_interval_s=float(read.number("memory-evict-interval-seconds")),
        memory_evict_cool_s=float(read.number("memory-evict-cool-time-seconds")),
        only_evict_by_api=read.switch("only-evict-by-api"),
        evict_by=read.text("evict-by"),
        cri_socket=read.path("cri-socket"),
        evict_min_age_s=read.seconds("evict-min-age"),
        memory_ladder=read.switch("memory-ladder"),
        memory_watch=read.switch("memory-watch"),
        audit_log_dir=read.path("audit-log-dir"),
        audit_verbose=read.number("audit-verbose"),
        audit_max_disk_space_bytes=read.number("audit-max-disk-space-mb") * 1024 * 1024,
        audit_max_concurrent_readers=read.number("audit-max-concurrent-readers"),
        audit_max_events_limit=read.number("audit-max-events-limit"),
        tls_cert_file=read.text("tls-cert-file"),
        tls_private_key_file=read.text("tls-private-key-file"),
        auth_token_file=read.text("auth-token-file"),
        enable_node_metric_report=read.switch("enable-node-metric-report"),
        collect_sys_metric_outdated_interval_s=read.seconds("collect-sys-metric-outdated-interval"),
        psi_collector_interval_s=read.seconds("psi-collector-interval"),
        enable_pagecache_collector=read.switch("enable-pagecache-collector"),
        prediction_checkpoint_filepath=read.path_or_none("prediction-checkpoint-filepath"),
        prediction_cold_start_s=read.seconds("prediction-cold-start-duration"),
        prediction_safety_margin_percent=read.number("prediction-safety-margin-percent", high=1000),
        prediction_memory_half_life_s=read.seconds("prediction-memory-histogram-decay-halflife"),
        prediction_cpu_half_life_s=read.seconds("prediction-cpu-histogram-decay-halflife"),
        prediction_training_interval_s=read.seconds("prediction-training-interval"),
        prediction_model_expiration_s=read.seconds("prediction-model-expiration-duration"),
        prediction_checkpoint_interval_s=read.seconds("prediction-model-checkpoint-interval"),
        prediction_checkpoints_per_step=read.number("prediction-model-checkpoint-max-per-step"),
        node_topology_sync_interval_s=read.seconds("node-topology-sync-interval"),
        kubelet_plain_url=plain,
        disable_query_kubelet_config=read.switch("disable-query-kubelet-config"),
        pod_resources_proxy_path=read.path("pod-resources-proxy-path"),
        xpu_device_infos_dir=read.path("xpu-device-infos-dir"),
        xpu_enforce_collect_from_device_infos=read.switch("xpu-enforce-collect-from-device-infos"),
        kubeconfig=read.text("kubeconfig"),
        kube_api_qps=read.seconds("kube-api-qps"),
        kube_api_burst=read.number("kube-api-burst"),
        kubelet_preferred_address_type=read.text("kubelet-preferred-address-type"),
        kubelet_certificate_authority=read.text("kubelet-certificate-authority") or None,
        kubelet_insecure_skip_verify=read.switch("kubelet-insecure-skip-verify"),
        given=frozenset(given),
        warnings=_warnings(given, gates),
    )


def help_text(env: Mapping[str, str]) -> str:
    """All flags with their defaults in the mode that the environment selects."""
    mode = "standalone" if not env.get("NODE_NAME") else "host" if env.get("agent_mode") == "hostMode" else "daemonset"
    out = [
        "Flags, with one or two dashes, as -flag=value or -flag value; booleans as -flag or -flag=false.",
        f"Defaults are those of mode {mode}.",
    ]
    titles = {
        Status.USED: "In use",
        Status.IGNORED: "Accepted without effect",
    }
    for status, title in titles.items():
        out += ["", f"{title}:"]
        for flag in sorted((flag for flag in FLAGS if flag.status is status), key=lambda flag: flag.name):
            kind = "|".join(flag.choices) or flag.kind
            out.append(f"  -{flag.name} {kind}  (default {_shown(flag, mode)})")
            out.append(textwrap.fill(flag.help, 100, initial_indent="      ", subsequent_indent="      "))
    return "\n".join(out) + "\n"


def _shown(flag: Flag, mode: str) -> str:
    """A default as people read it: Go's greatest numbers stand for "no limit"."""
    text = flag.default_in(mode)
    endless = {Kind.DURATION: _ENDLESS_S, Kind.INT: 2**31 - 1}.get(flag.kind)
    value = parsed(flag, text)
    return "no limit" if endless is not None and float(value) >= endless else text or "empty"


def _split(argv: list[str]) -> dict[str, str]:
    """name -> text of the flags given; the last one wins, maps are joined."""
    given: dict[str, str] = {}
    index = 0
    while index < len(argv):
        word = argv[index]
        index += 1
        if word == "--" and index == len(argv):
            break
        if not word.startswith("-") or word in ("-", "--"):
            hint = "; a boolean's value needs '=', as in -flag=true" if word in ("true", "false", "0", "1") else ""
            raise UsageError(f"unexpected argument {word[:80]!r}{hint}")
        name, equals, text = word.removeprefix("-").removeprefix("-").partition("=")
        if name in ("h", "help"):
            raise HelpRequested
        flag = _BY_NAME.get(name)
        if flag is None:
            near = difflib.get_close_matches(name, _BY_NAME, n=1)
            raise UsageError(f"unknown flag -{name[:80]}" + (f", did you mean -{near[0]}?" if near else ""))
        if not equals:
            if flag.kind is Kind.BOOL:
                text = "true"
            elif index == len(argv):
                raise UsageError(f"flag -{name} needs a value")
            else:
                text, index = argv[index], index + 1
        parsed(flag, text)
        given[name] = f"{given[name]},{text}" if flag.kind is Kind.MAP and given.get(name) else text
    return given


def _standalone(given: dict[str, str], env: Mapping[str, str]) -> bool:
    wanted = given.get("mode", "auto")
    if wanted != "auto":
        return wanted == "standalone"
    return not env.get("NODE_NAME") and not any(_BY_NAME[name].k8s for name in given)


def _value(flag: Flag, given: dict[str, str], mode: str) -> Value:
    return parsed(flag, given.get(flag.name, flag.default_in(mode)))


def _warnings(given: dict[str, str], gates: Gates) -> tuple[str, ...]:
    # What is asked for is what happens anyway: `--logtostderr=true` of every manifest needs no line.
    ignored = [
        f"flag -{flag.name} has no effect: {flag.help}"
        for flag in (_BY_NAME[name] for name in given)
        if flag.status is Status.IGNORED and parsed(flag, given[flag.name]) != parsed(flag, flag.default)
    ]
    return (*ignored, *gates.warnings)


_ENDLESS_S: Final = 100 * 366 * 86_400.0
_BY_NAME: Final = {flag.name: flag for flag in FLAGS}
