"""What a crashed stack left is found by pid and start time; a stranger with an old pid is not touched."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.guard import end_leftovers, find_leftovers
from stack.home import Home, ProcessRecord, RunnerState
from stack.process import boot_id, servers_in, start_ticks


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create(0o700)
    return home


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def state_with(pid: int, ticks: int | None, boot: str | None = None) -> RunnerState:
    return RunnerState(boot or boot_id(), {"broker-1": ProcessRecord("ready", pid, ticks)})


def test_a_recorded_process_is_ended(home: Home, sleeper: "subprocess.Popen[bytes]") -> None:
    home.save_state(state_with(sleeper.pid, start_ticks(sleeper.pid)))
    end_leftovers(home)
    assert start_ticks(sleeper.pid) is None
    assert home.state().processes == {}


def test_a_stranger_with_the_same_pid_lives(home: Home, sleeper: "subprocess.Popen[bytes]") -> None:
    ticks = start_ticks(sleeper.pid)
    assert ticks is not None
    for state in (state_with(sleeper.pid, ticks - 1), state_with(sleeper.pid, ticks, boot="another boot")):
        home.save_state(state)
        end_leftovers(home)
        assert sleeper.poll() is None


def test_members_of_a_session_are_ours_only_if_they_work_in_our_folders(home: Home) -> None:
    for folder, ours in ((home.run, True), (home.root.parent, False)):
        # The shell ends at once and leaves a child in its session.
        leader = subprocess.Popen(["sh", "-c", "sleep 60 & exit 0"], start_new_session=True, cwd=folder)
        leader.wait()
        found = find_leftovers(home, state_with(leader.pid, 1))
        assert len(found) == (1 if ours else 0)
        for process in found or find_leftovers(Home(folder), state_with(leader.pid, 1)):
            process.kill()


def test_only_servers_in_a_folder_are_found_and_also_when_it_was_removed(tmp_path: Path) -> None:
    data = tmp_path / "postgres-1"
    (data / "base").mkdir(parents=True)
    (tmp_path / "postgres-10").mkdir()
    processes = [subprocess.Popen(["sleep", "60"], cwd=cwd) for cwd in (data, data / "base", tmp_path / "postgres-10")]
    with subprocess.Popen(["cat"], cwd=data, stdin=subprocess.PIPE):
        found = [process.pid for process in processes[:2]]
        assert sorted(servers_in(data, "sleep")) == sorted(found)
        shutil.rmtree(data)
        assert sorted(servers_in(data, "sleep")) == sorted(found)
    for process in processes:
        process.kill()
        process.wait()
