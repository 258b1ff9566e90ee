"""Tasks: a task is in one class, and in one of that class's MON groups or none. Documentation/filesystems/resctrl.rst,
"Resource alloc and monitor groups", "tasks"; rdtgroup_tasks_write()."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator

import pytest

from tests.labs.resctrl.helpers import outcome, write
from tests.labs.resctrl.lab import Lab

pytestmark = pytest.mark.lab_resctrl

A, B, GONE = 5_000_001, 5_000_002, 5_000_009


def tasks(lab: Lab, group: str) -> list[int]:
    return [int(t) for t in (lab.mount / group / "tasks").read_text().split()]


@pytest.fixture
def groups(resctrl: Lab) -> Lab:
    """Classes a and b, MON groups a/mon_groups/m and n, and two made-up tasks in the default group."""
    for path in ("a", "b", "a/mon_groups/m", "a/mon_groups/n"):
        (resctrl.mount / path).mkdir()
    resctrl.fork(A)
    resctrl.fork(B)
    return resctrl


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        yield sleeper
        sleeper.kill()


def test_the_default_group_owns_every_task_of_the_machine(resctrl: Lab) -> None:
    everything = tasks(resctrl, "")
    assert os.getpid() in everything
    assert len(everything) == len(set(everything))


def test_a_real_task_moves_and_leaves_its_former_group(groups: Lab, process: subprocess.Popen[bytes]) -> None:
    for group in ("a", "b"):
        assert write(groups.mount / group / "tasks", f"{process.pid}\n") == ""
        assert tasks(groups, group) == [process.pid]
    assert tasks(groups, "a") == []
    assert process.pid not in tasks(groups, "")
    process.kill()
    process.wait()
    assert tasks(groups, "b") == []
    assert write(groups.mount / "b/tasks", f"{process.pid}\n") == "ESRCH"
    assert groups.status() == f"No task {process.pid}\nError while processing task {process.pid}\n"


def test_threads_move_one_by_one(groups: Lab) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert write(groups.mount / "a/tasks", f"{thread.native_id}\n") == ""
    assert tasks(groups, "a") == [thread.native_id]
    assert os.getpid() in tasks(groups, "")
    done.set()
    thread.join()


def test_zero_is_the_writer_itself(groups: Lab) -> None:
    assert write(groups.mount / "a/tasks", "0\n") == ""
    assert tasks(groups, "a") == [threading.get_native_id()]


def test_mon_groups_hold_a_part_of_their_class(groups: Lab) -> None:
    assert write(groups.mount / "a/mon_groups/m/tasks", f"{A}\n") == "EINVAL"
    assert groups.status() == f"Can't move task to different control group\nError while processing task {A}\n"
    assert write(groups.mount / "a/tasks", f"{A}\n") == ""
    assert write(groups.mount / "a/mon_groups/m/tasks", f"{A}\n") == ""
    assert (tasks(groups, "a"), tasks(groups, "a/mon_groups/m")) == ([A], [A])
    assert write(groups.mount / "a/mon_groups/n/tasks", f"{A}\n") == ""
    assert (tasks(groups, "a/mon_groups/m"), tasks(groups, "a/mon_groups/n")) == ([], [A])
    assert write(groups.mount / "a/tasks", f"{A}\n") == ""  # the class itself: out of the MON group
    assert (tasks(groups, "a"), tasks(groups, "a/mon_groups/n")) == ([A], [])


@pytest.mark.parametrize(
    ("text", "code", "status", "moved"),
    [
        (f"{A},{B}\n", "", "ok\n", [A, B]),
        (f"{A}", "", "ok\n", [A]),
        (f" {A} , {hex(B)}\n", "", "ok\n", [A, B]),
        ("\n", "", "ok\n", []),
        (f"{A},{GONE},{B}\n", "ESRCH", f"No task {GONE}\nError while processing task {GONE}\n", [A]),
        (f"{A},x,{B}\n", "EINVAL", "Task list parsing error pid x\n", [A]),
        (f"{A},,{B}\n", "EINVAL", "Task list parsing error pid \n", [A]),
        (f"{A}\n{B}\n", "EINVAL", f"Task list parsing error pid {A}\n{B}\n", []),
        ("-1\n", "EINVAL", "Invalid pid -1\n", []),
        ("99999999999\n", "EINVAL", "Task list parsing error pid 99999999999\n", []),
    ],
)
def test_a_list_stops_at_the_first_failure(groups: Lab, text: str, code: str, status: str, moved: list[int]) -> None:
    assert write(groups.mount / "b/tasks", text) == code
    assert groups.status() == status
    assert tasks(groups, "b") == moved


@pytest.mark.parametrize(
    ("text", "code", "status"),
    [
        (f"{A}\n", "", "ok\n"),
        (f"{A},{B}\n", "EINVAL", "Can't drop CPUs from default group\n"),  # the status of the command before stays
        ("-1\n", "EINVAL", "Can't drop CPUs from default group\n"),
        (f"{GONE}\n", "ESRCH", f"No task {GONE}\n"),
    ],
)
def test_before_6_7_one_id_per_write(groups: Lab, text: str, code: str, status: str) -> None:
    groups.reset("intel", "6.6")
    (groups.mount / "b").mkdir()
    groups.fork(A)
    write(groups.mount / "cpus_list", "0\n")
    assert write(groups.mount / "b/tasks", text) == code
    assert groups.status() == status


@pytest.mark.parametrize(("path", "after"), [("a", ""), ("a/mon_groups/m", "a")])
def test_removing_a_group_gives_its_tasks_back(groups: Lab, path: str, after: str) -> None:
    for group in ("a", path):
        write(groups.mount / group / "tasks", f"{A}\n")
    (groups.mount / path).rmdir()
    assert A in tasks(groups, after)
    assert (A in tasks(groups, "")) == (after == "")


def test_a_child_starts_in_its_parents_group_and_may_die(groups: Lab) -> None:
    write(groups.mount / "a/tasks", f"{A}\n")
    write(groups.mount / "a/mon_groups/m/tasks", f"{A}\n")
    groups.fork(B, parent=A)
    assert tasks(groups, "a/mon_groups/m") == [A, B]
    groups.exit(A)
    assert tasks(groups, "a/mon_groups/m") == [B]
    assert write(groups.mount / "a/tasks", f"{A}\n") == "ESRCH"


def test_a_real_task_may_be_declared_dead(groups: Lab, process: subprocess.Popen[bytes]) -> None:
    """The race of a thread that ends between the listing of a cgroup and the write, at a time of the test's choice."""
    write(groups.mount / "a/tasks", f"{process.pid}\n")
    groups.exit(process.pid)
    assert tasks(groups, "a") == []
    assert process.pid not in tasks(groups, "")
    assert write(groups.mount / "b/tasks", f"{process.pid}\n") == "ESRCH"


def test_only_root_moves_other_users_tasks(groups: Lab) -> None:
    groups.fork(A, uid=1234)
    fd = os.open(groups.mount / "a/tasks", os.O_WRONLY)

    def as_user(uid: int, text: bytes) -> str:
        os.seteuid(uid)
        try:
            return outcome(lambda: os.write(fd, text))
        finally:
            os.seteuid(0)

    assert as_user(1234, f"{B}\n".encode()) == "EPERM"
    assert groups.status() == f"No permission to move task {B}\nError while processing task {B}\n"
    assert as_user(1234, f"{A}\n".encode()) == ""
    os.close(fd)
