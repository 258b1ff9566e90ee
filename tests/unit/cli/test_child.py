"""`run --top`: the agent as a child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from koordlet.cli.run import LAST_LINES, Child


def child(code: str) -> Child:
    return Child([sys.executable, "-u", "-c", code], dict(os.environ))


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise SystemExit('bad flag')", "the agent ended with code 1"),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})", "the agent was ended by signal 9"),
    ],
    ids=["code", "signal"],
)
def test_how_it_died(code: str, says: str) -> None:
    one = child(code)
    assert one.dead(wait_s=60) == says
    one.stop()


def test_its_last_lines_are_kept() -> None:
    one = child("for i in range(100): print('line', i)")
    assert one.dead(wait_s=60)
    lines = one.last_lines().split("\n  ")[1:]
    assert (len(lines), lines[-1]) == (LAST_LINES, "line 99")
    one.stop()


def test_stop_lets_it_finish_its_work(tmp_path: object) -> None:
    one = child(
        "import signal, sys\n"
        "def end(*_):\n    print('gave back'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready')\n"
        "while True: signal.pause()\n"
    )
    while "ready" not in one.last_lines():
        assert one.dead(wait_s=0.01) == ""
    one.stop()
    assert one.last_lines().endswith("gave back")
    assert one.dead() == "the agent ended with code 0"


def test_ctrl_c_of_the_terminal_reaches_only_us() -> None:
    one = child("import os; print(os.getsid(0) == os.getpid())")
    assert one.dead(wait_s=60)
    assert one.last_lines() == "\n  True"
    one.stop()


def test_it_stops_when_we_are_killed() -> None:
    inner = (
        "import os, signal, sys\n"
        "def end(*_):\n    os.write(%d, b'asked'); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready')\n"
        "while True: signal.pause()\n"
    )
    outer = (
        "import os, signal, sys\n"
        "from koordlet.cli.run import Child\n"
        "os.set_inheritable(int(sys.argv[2]), True)\n"
        "real = __import__('subprocess').Popen\n"
        "__import__('subprocess').Popen = lambda *a, **k: real(*a, **k, close_fds=False)\n"
        "one = Child([sys.executable, '-u', '-c', sys.argv[1]], dict(os.environ))\n"
        "while 'ready' not in ''.join(list(one._lines)): one.dead(wait_s=0.01)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    reader, writer = os.pipe()
    subprocess.run([sys.executable, "-c", outer, inner % writer, str(writer)], pass_fds=[writer], timeout=60)
    os.close(writer)
    assert os.read(reader, 100) == b"asked"
    os.close(reader)
