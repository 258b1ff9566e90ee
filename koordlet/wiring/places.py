"""Where the agent lives on this machine: the host's directories, its locks and its journal."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from koordlet.act.journal import Journal, read_boot_id
from koordlet.act.lock import DirectoryLock, Lock, LockedError
from koordlet.config.flags import Flags
from koordlet.kernel.host import Host
from koordlet.model.places import JOURNAL_FILE, LOCK_FILE


class StartError(Exception):
    """The agent cannot start; the text says why and what to do."""


def make_host(flags: Flags) -> Host:
    """The host's root directories as the flags have them."""
    return Host.preset(
        "host" if flags.host_mode else "daemonset",
        cgroup_root=flags.cgroup_root_dir,
        sys_root=flags.sys_root_dir,
        sys_fs_root=flags.sys_fs_root_dir,
        proc_root=flags.proc_root_dir,
        var_run_root=flags.var_run_root_dir,
        run_root=flags.run_root_dir,
        kubelet_root=flags.var_lib_kubelet_dir,
    )


def open_journal(state_dir: Path, host: Host, stack: ExitStack) -> Journal:
    """The restore journal of a state directory, locked: `koordlet undo` may know no other place of ours."""
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"--state-dir={state_dir}: {error.strerror}; run as root, or name a writable one") from error
    stack.enter_context(DirectoryLock(state_dir))
    journal = Journal(state_dir / JOURNAL_FILE, read_boot_id(host))
    stack.callback(journal.close)
    return journal


def lock_node(run_dir: Path) -> Lock:
    try:
        return Lock(run_dir / LOCK_FILE)
    except LockedError:
        raise
    except OSError as error:
        raise StartError(f"--run-dir={run_dir}: {error.strerror}; run as root, or name a writable one") from error


def lock_tree(host: Host, cgroup_root: str) -> DirectoryLock:
    """Two agents with different run directories must not share a tree either."""
    place = host.dir("cpu", cgroup_root.strip("/"))
    try:
        return DirectoryLock(place if place.is_dir() else host.dir("cpu", ""))
    except OSError as error:
        raise StartError(f"{error.filename}: {error.strerror}; no cgroups there, see --cgroup-root-dir") from error
