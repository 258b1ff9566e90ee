"""The arguments of the reference's own DaemonSet."""

OFFICIAL = [
    "-cgroup-root-dir=/host-cgroup/",
    "-feature-gates=AllAlpha=true,AllBeta=true",
    "-runtime-hooks-network=unix",
    "-runtime-hooks-addr=/host-var-run-koordlet/koordlet.sock",
    "-runtime-hooks-host-endpoint=/var/run/koordlet//koordlet.sock",
    "--logtostderr=true",
    "--v=4",
]
