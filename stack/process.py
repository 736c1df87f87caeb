"""Start processes as services (own session, memory limit, killed with the runner), and identify them by start time."""

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def die_with_parent(parent_pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Must be called by the child after its user is set: changing the user clears the parent-death signal."""
    _prctl(PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal_number)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent exits, instead of init."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


class PreparationFailed(Exception):
    """What a service needs before it can start is not there; why is in the message or in the runner's log."""


@dataclass(frozen=True)
class Account:
    """The unprivileged user for programs that refuse root or need no rights. None stands for the current user."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True)
class Command:
    argv: Sequence[str | Path]
    env: Mapping[str, str]
    cwd: Path
    memory_bytes: int
    account: Account | None = None
    limit_s: float | None = 60.0  # of a helper program; None: as long as it takes


def _limits(memory_bytes: int, runner_pid: int) -> Callable[[], None]:
    def apply() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        die_with_parent(runner_pid)

    return apply


def spawn(command: Command, log: Path, stdin: int | None = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
    """Call it from the main thread only: the parent-death signal follows the thread that started the child."""
    account = command.account
    with log.open("ab") as output:
        return subprocess.Popen(
            [os.fspath(argument) for argument in command.argv],
            env=dict(command.env),
            cwd=command.cwd,
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
            umask=0o077,
            preexec_fn=_limits(command.memory_bytes, os.getpid()),
        )


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def start_ticks(pid: int) -> int | None:
    """Start time of a process in ticks since boot: together with the pid it is unique until the next boot."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def servers_in(folder: Path, program: str) -> list[int]:
    """Processes of a program whose working directory is the folder or one below, also if it was removed meanwhile. A
    person's shell there is none of them."""
    place = os.path.realpath(folder)  # as the kernel says it, also where a part of the path is a link
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                works_in = str((entry / "cwd").readlink()).removesuffix(" (deleted)")
                is_there = works_in == place or works_in.startswith(place + os.sep)
                if is_there and (entry / "comm").read_text().strip() == program:
                    found.append(int(entry.name))
    return found


async def kill_servers_in(folder: Path, program: str, within_s: float = 10.0) -> bool:
    """True when there is none left: a server is dead when nothing of it works in its folder."""
    deadline_s = time.monotonic() + within_s
    while pids := servers_in(folder, program):
        if time.monotonic() > deadline_s:
            return False
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.02)
    return True


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def is_same(pid: int | None, ticks: int | None) -> bool:
    return pid is not None and ticks is not None and start_ticks(pid) == ticks


def kill_descendants() -> None:
    """Kill all descendants of this process and wait until they are gone."""
    me = psutil.Process()
    while children := me.children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=0.2)
