"""The detached pair behind a stack: the runner at work, and over it a guard that cleans up if the runner dies.

up ──▶ guard (holds the home's lock, adopts orphans) ──▶ runner ──▶ services

A runner that is killed takes its direct children along (parent-death signal); what those leave behind, such as nginx's
workers, comes to the guard, which ends it. A guard that is killed makes the runner stop the stack in order.
"""

import asyncio
import os
import resource
import signal
import sys

from service import logs
from stack.failure import StackError
from stack.home import Home, RunnerState
from stack.leftovers import end_leftovers
from stack.process import adopt_orphans, die_with_parent, kill_descendants
from stack.supervisor import Supervisor

# Also the most that a service can get: only root may raise a limit again.
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
            # Not a return: the guard's cleaning up above must not run in the child.
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
