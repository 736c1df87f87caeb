"""Ending what a crashed stack left behind, and never a stranger that got one of its old pids."""

import contextlib
from pathlib import Path

import psutil

from stack.home import Home, RunnerState
from stack.process import boot_id, is_same, session_of


def works_in(process: psutil.Process, folders: list[Path]) -> bool:
    try:
        place = Path(process.cwd())
    except psutil.Error:
        return False
    return any(place.is_relative_to(folder) for folder in folders)


def find_leftovers(home: Home, state: RunnerState) -> list[psutil.Process]:
    """A recorded process is ours if its start time is the recorded one. A member of its session is ours if it also
    works in one of the stack's folders: the kernel may have given the number of a dead session away."""
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
        elif session_of(process.pid) in recorded and works_in(process, folders):
            found.append(process)
    return found


def end_leftovers(home: Home) -> None:
    """Call it while no runner is at work. Repeats until none is found: some take a moment to follow their parent."""
    while leftovers := find_leftovers(home, home.state()):
        for process in leftovers:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(leftovers, timeout=1.0)
    home.save_state(RunnerState())
