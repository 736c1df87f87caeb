"""A full disk and a failing one at every call of the script: nothing is lost, and it goes on."""

import random

import pytest

from broker.storage.disk import DiskError, NoSpace
from broker.storage.journal_frame import headers_in
from tests.fault_disk import Fault, FaultDisk
from tests.unit.storage.store_run import StoreRun
from tests.unit.storage.store_script import Op, write_round
from tests.unit.storage.test_store_damage import journal_files, small_store
from tests.unit.storage.test_store_power_loss import CALLS_OF_A_START, calls_of_script, go_on, run_script

LONG = (pytest.mark.exhaustive, pytest.mark.timeout(900))


@pytest.mark.parametrize(
    ("first", "every", "lasts"),
    [(11, 37, 3), *(pytest.param(0, 1, lasts, marks=LONG) for lasts in (1, 4, 30))],
)
def test_a_full_disk_at_every_call(first: int, every: int, lasts: int) -> None:
    ended = 0
    for call in range(CALLS_OF_A_START + 1 + first, calls_of_script() + 1, every):
        disk = FaultDisk()
        run = StoreRun(disk)
        disk.faults = dict.fromkeys(range(call, call + lasts), Fault.NO_SPACE)
        try:
            run_script(run, settles=False)
        except DiskError:  # it showed in a sync: nobody knows what is stored
            ended += 1
            disk.after_kill()
            run.restart()
        disk.faults.clear()
        run.settle()
        run.check()
        run.disk = disk.after_any_power_loss(random.Random(call))
        run.restart()
        go_on(run)
    assert ended < (calls_of_script() - CALLS_OF_A_START) / every / 2


@pytest.mark.parametrize(("first", "every"), [(13, 41), pytest.param(0, 1, marks=LONG)])
@pytest.mark.parametrize("forgets", [False, True])
def test_a_failed_call_ends_the_process_and_nothing_is_lost(first: int, every: int, forgets: bool) -> None:
    """`forgets`: the page cache has dropped what was not written."""
    for call in range(CALLS_OF_A_START + 1 + first, calls_of_script() + 1, every):
        disk = FaultDisk()
        run = StoreRun(disk)
        disk.faults = {call: Fault.ERROR}
        with pytest.raises(DiskError):
            run_script(run)
        if forgets:
            disk.after_cache_loss()
        disk.faults.clear()
        for found in (disk.after_any_power_loss(random.Random(call)), disk):
            again = run.fork(found)
            again.restart()
            go_on(again)


def test_a_full_disk_during_a_start() -> None:
    template = small_store(with_upkeep=False)
    calls = 0
    for call in range(1, 100):
        disk = template.disk.copy()
        disk.faults = {call: Fault.NO_SPACE}
        run = template.fork(disk)
        try:
            run.open()
        except (NoSpace, DiskError):
            calls += 1
        disk.faults.clear()
        run.restart()
        run.disk = disk.after_power_loss()
        run.restart()
    assert calls > 10


def test_a_disk_that_stays_full_takes_no_room_for_installs() -> None:
    """Every try would leave a table behind."""
    run = StoreRun(FaultDisk())
    write_round(run, [Op("append", 0), Op("append", 1)])
    write_round(run, [Op("install", 0, 1, 2), Op("install", 1, 1, 2)])
    run.settle()
    run.disk.faults = dict.fromkeys(range(run.disk.calls + 4, run.disk.calls + 60), Fault.NO_SPACE)
    write_round(run, [Op("install", 0, 1, 2), Op("install", 1, 1, 2)])
    run.disk.faults.clear()
    run.settle()
    run.check()


def test_entries_behind_a_bad_one_in_the_journal_are_kept() -> None:
    """They are nowhere else: the segment that holds them is set aside, whatever is written later."""
    run = StoreRun(FaultDisk())
    write_round(run, [Op("append", 0), Op("append", 1)])
    for _ in range(3):
        write_round(run, [Op("append", 0, 2, 2)])
    disk = run.disk
    frames = [(name, at, header) for name in journal_files(disk) for at, header in headers_in(disk.contents(name))]
    name, at, header = next(place for place in frames if place[2].sequence == run.store.journal.sequence - 1)
    disk.flip(name, (at + header.size_bytes - 1) * 8)
    damaged = disk.contents(name)
    again = run.fork(disk)
    again.open()
    assert [log.group.suspect is not None for log in again.store.logs.values()] == [True, False]
    for number in range(40):
        again.set_value("name", str(number))
        again.writer.write_waiting()
        again.upkeep_once()
    assert damaged in [disk.contents(f"damaged/{kept}") for kept in disk.names("damaged")]
