"""The two detached processes of a stack: the runner, and its parent, a guard that cleans up if the runner dies.

up ──▶ guard (holds the home's lock, adopts orphans) ──▶ runner ──▶ services

When the runner is killed, its direct children get the parent-death signal; their own children, such as nginx's workers,
are adopted and killed by the guard. When the guard is killed, the runner gets SIGTERM and stops the stack in order.
"""

import asyncio
import contextlib
import os
import resource
import signal
import sys
from pathlib import Path

import psutil

from service import logs
from stack.config import StackError
from stack.home import Home, RunnerState
from stack.process import adopt_orphans, boot_id, die_with_parent, is_same, kill_descendants, session_of
from stack.supervisor import Supervisor

# Services cannot get more either: only root may raise a limit again.
MEMORY_BYTES = 1 << 30


def run(home: Home) -> int:
    """Returns when the stack is down."""
    lock = home.try_lock()
    if lock is None:
        raise StackError("another runner is at work in this home")
    layout = home.layout()
    if layout is None:
        raise StackError("this home has no stack yet; run `up`")
    end_leftovers(home)
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    guard_pid = os.getpid()
    runner_pid = os.fork()
    if runner_pid == 0:
        die_with_parent(guard_pid, signal.SIGTERM)
        adopt_orphans()
        log = logs.configure("runner", "info")
        code = 1
        try:
            asyncio.run(Supervisor(home, layout, log).run())
            code = 0
        except Exception:
            log.exception("the runner failed")
        finally:
            sys.stdout.flush()
            # Not a return: the rest of this function must not run in the child.
            os._exit(code)
    home.pid_file("runner").write_text(f"{runner_pid}\n")
    return _watch(home, runner_pid)


def _watch(home: Home, runner_pid: int) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: os.kill(runner_pid, received))
    _, status = os.waitpid(runner_pid, 0)
    kill_descendants()
    for name in (*home.state().processes, "runner"):
        home.pid_file(name).unlink(missing_ok=True)
    home.save_state(RunnerState())
    return os.waitstatus_to_exitcode(status)


def end_leftovers(home: Home) -> None:
    """Kill the processes that a crashed stack left. Call it while no runner is at work.

    Repeats until none is found: some take a moment to follow their parent."""
    while leftovers := find_leftovers(home, home.state()):
        for process in leftovers:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(leftovers, timeout=1.0)
    home.save_state(RunnerState())


def find_leftovers(home: Home, state: RunnerState) -> list[psutil.Process]:
    """A pid alone proves nothing, because the kernel reuses pids. A recorded process is ours if its start time is the
    recorded one; a member of its session is ours if it also works in one of the stack's folders."""
    if state.boot_id != boot_id():
        return []
    layout = home.layout()
    folders = [home.root] if layout is None or layout.shelter is None else [home.root, Path(layout.shelter)]
    recorded = {record.pid: record for record in state.processes.values() if record.pid is not None}
    found = []
    for process in psutil.process_iter():
        record = recorded.get(process.pid)
        if record is not None:
            if is_same(record.pid, record.start_ticks):
                found.append(process)
        elif session_of(process.pid) in recorded and _works_in(process, folders):
            found.append(process)
    return found


def _works_in(process: psutil.Process, folders: list[Path]) -> bool:
    try:
        place = Path(process.cwd())
    except psutil.Error:
        return False
    return any(place.is_relative_to(folder.resolve()) for folder in folders)
