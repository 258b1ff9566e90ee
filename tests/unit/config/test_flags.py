import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.config.errors import UsageError
from koordlet.config.flags import Flags, HelpRequested, help_text, parse
from koordlet.config.flagtable import FLAGS
from koordlet.config.gosyntax import parse_bool, parse_duration_ns, parse_int
from tests.hosts.official import OFFICIAL

CLUSTER = {"NODE_NAME": "node-a"}


def test_official_daemonset_arguments_work_verbatim() -> None:
    flags = parse(OFFICIAL, CLUSTER)
    assert not flags.standalone
    assert flags.cgroup_root_dir == Path("/host-cgroup")
    assert flags.log_level == 4
    assert flags.node_name == "node-a"
    assert "BECPUManager" not in flags.gates.effective


def test_defaults_of_a_daemonset() -> None:
    flags = parse([], CLUSTER)
    assert (flags.addr, flags.sys_root_dir, flags.audit) == (":9316", Path("/host-sys"), False)
    assert (flags.policy, flags.workloads, flags.pods) == (None, None, "")
    assert flags.collect_res_used_interval_s == 1.0
    assert flags.warnings == ()


def test_host_mode_selects_host_paths() -> None:
    flags = parse([], CLUSTER | {"agent_mode": "hostMode"})
    assert (flags.cgroup_root_dir, flags.sys_root_dir) == (Path("/sys/fs/cgroup"), Path("/sys"))
    assert not flags.standalone
    assert parse([], CLUSTER | {"agent_mode": "hostmode"}).sys_root_dir == Path("/host-sys")


def test_without_a_cluster_it_is_standalone() -> None:
    flags = parse(["--policy", "p.yaml"], {})
    assert flags.standalone
    assert flags.audit
    assert (flags.addr, flags.sys_root_dir) == ("127.0.0.1:9316", Path("/sys"))
    assert flags.node_name
    assert flags.policy == Path("p.yaml")
    assert flags.workloads == Path("/etc/koordlet/local.d")


@pytest.mark.parametrize(
    ("argv", "env"),
    [(["--kubeconfig=/k"], {}), (["--mode=k8s"], {}), ([], {"NODE_NAME": ""} | {"agent_mode": "x"})],
    ids=["a cluster flag", "mode k8s", "standalone again"],
)
def test_a_cluster_needs_a_node_name(argv: list[str], env: dict[str, str]) -> None:
    if not argv:
        assert parse(argv, env).standalone
        return
    with pytest.raises(UsageError, match="NODE_NAME"):
        parse(argv, env)


SPELLINGS = [
    (["-observe"], "observe", True),
    (["--observe"], "observe", True),
    (["--observe=false"], "observe", False),
    (["-observe=T"], "observe", True),
    (["-identity=0"], "identity", False),
    (["-observe", "-observe=false"], "observe", False),
    (["-stale-floor-percent", "5"], "stale_floor_percent", 5),
    (["--stale-floor-percent=0x10"], "stale_floor_percent", 16),
    (["-collect-res-used-interval=1m30s"], "collect_res_used_interval_s", 90.0),
    (["-collect-res-used-interval", "1500ms"], "collect_res_used_interval_s", 1.5),
    (["-restore-on-exit=keep"], "restore_on_exit", False),
    (["-pods=http://127.0.0.1:10255/pods"], "pods", "http://127.0.0.1:10255/pods"),
    (["-kubelet-insecure-tls"], "pods", "http://127.0.0.1:10255/pods/"),
    (["-kubelet-insecure-tls", "-kubelet-read-only-port=1"], "pods", "http://127.0.0.1:1/pods/"),
    (["-kubelet-insecure-tls", "-pods=FILE"], "pods", "FILE"),
    (["-kubelet-insecure-tls", "-pods=FILE"], "kubelet_plain_url", "http://127.0.0.1:10255"),
    (["-kubelet-read-only-port=1"], "kubelet_plain_url", ""),
    (["-audit-max-disk-space-mb=2"], "audit_max_disk_space_bytes", 2 * 1024 * 1024),
    (["-addr", "[::1]:80"], "addr", "[::1]:80"),
    (["-v", "2", "--"], "log_level", 2),
]


@pytest.mark.parametrize(("argv", "name", "value"), SPELLINGS, ids=[" ".join(row[0]) for row in SPELLINGS])
def test_go_spellings(argv: list[str], name: str, value: object) -> None:
    assert getattr(parse(argv, CLUSTER), name) == value


REFUSED = [
    (["-polcy=x"], "did you mean -policy"),
    (["---observe"], "unknown flag"),
    (["-observe", "true"], "needs '='"),
    (["run"], "unexpected argument"),
    (["-"], "unexpected argument"),
    (["--", "x"], "unexpected argument"),
    (["-policy"], "needs a value"),
    (["-observe=yes"], "true or false"),
    (["-v=1_0"], "an integer"),
    (["-v= 5"], "an integer"),
    (["-v=٣"], "an integer"),
    (["-v=1.5"], "an integer"),
    (["-collect-res-used-interval=10"], "duration"),
    (["-collect-res-used-interval=0"], "at least 0.1 s"),
    (["-collect-res-used-interval=1000000h"], "at most 86400 s"),
    (["-stale-floor-percent=101"], "at most 100"),
    (["-stale-floor-percent=-1"], "at least 0"),
    (["-cgroup-driver=openrc"], "auto or systemd or cgroupfs"),
    (["-kube-api-qps=NaN"], "finite"),
    (["-qos-extension-plugins=x=maybe"], "true or false"),
    (["-qos-extension-plugins=x"], "name=true"),
    (["-feature-gates=NoSuch=true"], "unknown gate"),
    (["-addr=9316"], "host:port"),
    (["-addr=:99999"], "host:port"),
    (["-sys-root-dir="], "expected a path"),
]


@pytest.mark.parametrize(("argv", "message"), REFUSED, ids=[" ".join(row[0]) for row in REFUSED])
def test_refused_with_a_reason(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse(argv, CLUSTER)
    assert caught.value.exit_code == 2


def test_maps_are_joined_over_repetitions() -> None:
    flags = parse(["-feature-gates=CPUBurst=false", "-feature-gates=AllAlpha=true"], CLUSTER)
    assert "CPUBurst" not in flags.gates.enabled
    assert "MemoryEvict" in flags.gates.enabled


def test_a_flag_without_effect_warns_once_and_says_why() -> None:
    flags = parse(["-docker-endpoint=/a", "-docker-endpoint=/b", "-tsdb-path=/x"], CLUSTER)
    assert flags.warnings == (
        "flag -docker-endpoint has no effect: a runtime is asked for -evict-by=cri alone, on -cri-socket",
        "flag -tsdb-path has no effect: samples live in rings of fixed size",
    )


def test_help_names_every_flag_with_its_default() -> None:
    with pytest.raises(HelpRequested):
        parse(["--help"], {})
    text = help_text({})
    assert all(f"  -{flag.name} " in text for flag in FLAGS)
    assert "(default 127.0.0.1:9316)" in text
    assert "(default :9316)" in help_text(CLUSTER)
    for name, kind in (("cap", "duration"), ("steps", "int")):
        assert f"-runtime-hooks-nri-backoff-{name} {kind}  (default no limit)" in text
    assert "4611686018427387903" not in text


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_default_is_valid_when_typed(flag: object) -> None:
    for mode in ("daemonset", "host", "standalone"):
        default = flag.default_in(mode)  # type: ignore[attr-defined]
        parse([f"-{flag.name}={default}"], CLUSTER)  # type: ignore[attr-defined]


DURATIONS = [
    ("0", 0), ("5m0s", 300_000_000_000), ("1h30m", 5_400_000_000_000), ("1.5s", 1_500_000_000), (".5s", 500_000_000),
    ("-1s", -1_000_000_000), ("4611686018427387903ns", 4611686018427387903), ("1us", 1000), ("1µs", 1000),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value_ns"), DURATIONS)
def test_durations(text: str, value_ns: int) -> None:
    assert parse_duration_ns(text) == value_ns


@pytest.mark.parametrize("text", ["", "1", "s", "1x", "1s ", " 1s", "1e3s", "99999999h", "-", "1..5s"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration_ns(text)


@pytest.mark.parametrize(("text", "value"), [("010", 8), ("0x1F", 31), ("0b11", 3), ("0o17", 15), ("-3", -3), ("0", 0)])
def test_integers(text: str, value: int) -> None:
    assert parse_int(text) == value


def test_booleans() -> None:
    assert [parse_bool(text) for text in ("1", "t", "True", "0", "F", "false")] == [True] * 3 + [False] * 3


@given(st.lists(st.text(max_size=40) | st.sampled_from([f"-{flag.name}=" for flag in FLAGS]), max_size=4))
def test_any_command_line_parses_or_is_refused(argv: list[str]) -> None:
    with contextlib.suppress(UsageError, HelpRequested):
        assert isinstance(parse(argv, CLUSTER), Flags)
