"""The commands against a real door that serves a hand-made moment."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from koordlet.cli import client, main
from koordlet.model.support import Capability, Level, Support
from koordlet.model.view import Outcome
from tests.unit.cli.conftest import open_door
from tests.unit.report.samples import SNAPSHOT

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("run") / "agent.sock"
    door = open_door(path, SNAPSHOT)
    yield str(path)
    door.close()


STATUS = [
    "0.1.0, enforcing, as of 0.4 s ago",
    "degraded: psi of cgroups is missing",
    "321 ticks, last took 3.2 ms, 2 late, woken early 5 times",
    "node-a, CPU 4.70 of 8.00 cores (59 %), memory 12.0 GiB of 32.0 GiB (38 %)",
    "kubepods/besteffort may use 2.00 cores (cpu.cfs_quota_us by suppress)",
    "because capacity 8.00 cores, threshold 65 %, nonbe 2.90 cores",
    "5 known, 4 live, 3 best effort, read 4.4 s ago",
    "threshold lowered by the floor",
    "1 failed, 2 held",
    "write 2: Permission denied",
    "Not on this machine: psi.cgroup",
]
TOP = [
    "koordlet on node-a: enforcing, as of 0.4 s ago, tick 321 took 3.2 ms\ndegraded:",
    "59 %  4.70 of 8.00 cores  online 3.20, best effort 1.50",
    "1.2 %  of the time something online waits for a CPU",
    "may use 2.00 cores (cpu.cfs_quota_us by suppress)",
    "BE        2  1.50  3.0 GiB           8.00",
    "shop/web-0              LS     1.80  3.0 GiB        5 %",
    "host application nginx",
]
EXPLAIN = [
    "batch/spark-exec-1, running",
    "BE, koord-batch, Kubernetes BestEffort, best effort",
    "cpu.idle = 1  was 0  by identity  held for 12.4 s",
    "because tree kubelet, qos BE",
    "Values of the groups above",
    "cpu.cfs_quota_us = 200000  was -1  by suppress",
    "Wanted, but another strategy has the say",
    "set cpu.idle to 1",
]


@pytest.mark.parametrize(
    ("words", "says"),
    [(["status"], STATUS), (["top", "--once"], TOP), (["explain", "spark-exec-1"], EXPLAIN)],
    ids=["status", "top", "explain"],
)
def test_pages(agent: str, capsys: pytest.CaptureFixture[str], words: list[str], says: list[str]) -> None:
    assert main([*words, "--socket", agent]) == 0
    out = capsys.readouterr().out
    assert [line for line in says if line not in out] == []
    assert "\x1b" not in out


@pytest.mark.parametrize("words", [["status"], ["explain", "be"], ["explain", "spark-exec-1"]], ids=" ".join)
def test_json(agent: str, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main([*words, "--socket", agent, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["mode"] == "enforce"


def test_what_is_at_rest_and_what_only_vendors_have_take_one_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing: Outcome[object] = Outcome((), None)
    table = dict(SNAPSHOT.view.support.table)
    for name in ("cpu.bvt_warp_ns", "memory.priority"):
        table[name] = Capability(name, Level.UNSUPPORTED, f"{name}: file absent, needs an Anolis kernel")
    view = replace(SNAPSHOT.view, support=Support(table), be_roots=())
    snapshot = replace(SNAPSHOT, view=view, outcomes={**SNAPSHOT.outcomes, "burst": nothing, "blkio": nothing})
    door = open_door(tmp_path / "k.sock", snapshot)
    try:
        assert main(["status", "--socket", str(tmp_path / "k.sock")]) == 0
        assert main(["explain", "be", "--socket", str(tmp_path / "k.sock")]) == 1
    finally:
        door.close()
    said = capsys.readouterr()
    assert "At rest       burst, blkio" in said.out
    assert said.out.count("wants 1 value") == 2
    assert "Not on this machine: psi.cgroup, 2 that only Anolis kernels have" in said.out
    assert "there is no best-effort group here yet" in said.err


def test_top_prints_as_many_frames_as_asked(
    agent: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("koordlet.cli.top.PLAIN_INTERVAL_S", 0.0)
    assert main(["top", "--frames", "3", "--socket", agent]) == 0
    assert capsys.readouterr().out.count("koordlet on node-a") == 3


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("nothing", "'nothing': no workload and no cgroup of that name\n  koordlet top lists the workloads"),
        ("etl", "'etl': no workload and no cgroup of that name; do you mean\n  koordlet explain batch/etl-77"),
    ],
    ids=["unknown", "near"],
)
def test_explain_of_an_unknown_name(agent: str, capsys: pytest.CaptureFixture[str], what: str, says: str) -> None:
    assert main(["explain", what, "--socket", agent]) == 1
    assert says in capsys.readouterr().err
    assert main(["explain", what, "--socket", agent, "--output", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["found"] is False


@pytest.mark.parametrize("words", [["status"], ["top", "--once"], ["explain", "x"]], ids=" ".join)
def test_no_agent_names_the_socket_and_how_to_start_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    path = tmp_path / "agent.sock"
    assert main([*words, "--socket", str(path)]) == 1
    error = capsys.readouterr().err
    assert f"no agent answers on {path}" in error
    assert f"koordlet run -run-dir={tmp_path}" in error


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("/nope", "an agent's socket is called agent.sock and lies in its -run-dir (/run/koordlet by default)"),
        ("/etc/hostname/agent.sock", "no agent answers on /etc/hostname/agent.sock"),
        ("{tmp}", "that is a directory; its socket would be:  --socket {tmp}/agent.sock"),
        ("{tmp}/nope", "start one:   koordlet run\n"),
    ],
    ids=["name", "below-a-file", "directory", "start"],
)
def test_advice_for_a_path_that_is_no_agents_socket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: str, says: str
) -> None:
    monkeypatch.setattr(client, "DEFAULT_SOCKET", str(tmp_path / "none/agent.sock"))
    assert main(["status", "--socket", given.format(tmp=tmp_path)]) == 1
    error = capsys.readouterr().err
    assert says.format(tmp=tmp_path) in error
    assert "run-dir=/\n" not in error


def test_an_agent_in_the_usual_place_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = tmp_path / "agent.sock"
    usual.touch()
    monkeypatch.setattr(client, "DEFAULT_SOCKET", str(usual))
    assert main(["status", "--socket", "/nope"]) == 1
    assert "leave --socket out" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["status"], ["top", "--once"], ["explain", "x"]], ids=" ".join)
def test_an_agent_that_is_starting_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    door = open_door(tmp_path / "k.sock", None)
    try:
        assert main([*words, "--socket", str(tmp_path / "k.sock")]) == 1
    finally:
        door.close()
    assert "the agent is starting" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "usage: koordlet COMMAND"),
        (["--help"], 0, "koordlet demo"),
        (["help", "status"], 0, "usage: koordlet status"),
        (["--version"], 0, "koordlet "),
        (["sttus"], 2, "did you mean status?"),
        (["zzz"], 2, "there are: run check"),
        (["status", "--nonsense"], 2, "unrecognized arguments: --nonsense"),
        (["status", "--output", "xml"], 2, "invalid choice"),
        (["explain"], 2, "workload"),
        (["top", "--frames", "0"], 2, "at least 1"),
        (["run", "--help"], 0, "-feature-gates"),
        (["run", "-h"], 0, "--top"),
        (["run", "-no-such-flag"], 2, "unknown flag -no-such-flag"),
        (["-no-such-flag=1"], 2, "unknown flag -no-such-flag"),
        (["run", "--frames", "3"], 2, "works with --top only"),
        (["run", "--top", "--frames=x"], 2, "expected a number"),
        (["run", "--top", "-observe=maybe"], 2, "-observe"),
        (["check", "--help"], 0, "--be-dir"),
        (["undo", "--help"], 0, "--state-dir"),
        (["pins", "--help"], 0, "--dry-run"),
        (["pins"], 2, "action"),
        (["top", "--help"], 0, "--once"),
        (["explain", "--help"], 0, "koordlet explain be"),
        (["demo", "--help"], 0, "usage: koordlet demo"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_usage(capsys: pytest.CaptureFixture[str], words: list[str], code: int, says: str) -> None:
    assert main(words) == code
    out, error = capsys.readouterr()
    assert says in (error if code else out)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["nonsense"]], ids=" ".join)
def test_the_front_door_loads_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys; from koordlet.cli import main; main(sys.argv[1:]);"
        "print(*sorted({'rich', 'prometheus_client', 'msgspec', 'structlog', 'cffi', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


def test_a_closed_pipe_is_no_fault(agent: str) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    done = subprocess.run(
        [sys.executable, "-m", "koordlet", "status", "--socket", agent],
        cwd=ROOT,
        stdout=write_fd,
        stderr=subprocess.PIPE,
    )
    os.close(write_fd)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "how", ["q", "\x1b", "SIGTERM", "SIGINT", "SIGHUP"], ids=["q", "escape", "sigterm", "sigint", "sighup"]
)
def test_live_top_on_a_terminal(agent: str, how: str) -> None:
    """Draws in the terminal's second screen, and leaves it and its settings as they were."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    settings = termios.tcgetattr(theirs)
    environment = {**os.environ, "TERM": "xterm-256color"}
    del environment["COLUMNS"]
    child = subprocess.Popen(
        [sys.executable, "-m", "koordlet", "top", "--socket", agent],
        cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    shown = b""
    try:
        while b"q quit" not in shown:
            assert select.select([ours], [], [], 60)[0], shown
            shown += os.read(ours, 65536)
        if how.startswith("SIG"):
            child.send_signal(signal.Signals[how])
        else:
            os.write(ours, how.encode())
        assert child.wait(60) == 0
        while select.select([ours], [], [], 0)[0]:
            shown += os.read(ours, 65536)
        assert termios.tcgetattr(theirs) == settings
    finally:
        child.kill()
        child.wait()
        os.close(ours)
        os.close(theirs)
    assert b"shop/web-0" in shown
    assert shown.rindex(b"\x1b[?1049l") > shown.rindex(b"\x1b[?1049h")


def test_check_sees_a_running_agent(agent: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "--run-dir", os.path.dirname(agent), "--output", "json"])
    answer = json.loads(capsys.readouterr().out)
    assert {"name": "agent", "grade": "ok", "text": f"one runs on {agent}", "advice": ""} in answer["environment"]
