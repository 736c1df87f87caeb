"""Power is lost, or the process killed, at every call of a script that does everything to a store."""

import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pytest

from tests.fault_disk import Fault, FaultDisk, PowerLoss
from tests.unit.storage.store_run import StoreRun
from tests.unit.storage.store_script import Op, script, write_round

CALLS_OF_A_START = StoreRun(FaultDisk()).disk.calls


def run_script(run: StoreRun, *, settles: bool = True) -> None:
    for step in script() if settles else script()[:-1]:
        step(run)


def calls_of_script() -> int:
    disk = FaultDisk()
    run_script(StoreRun(disk))
    return disk.calls


def until_power_loss(call: int) -> StoreRun:
    """The script up to that call; a start that does not end is made again by the caller."""
    disk = FaultDisk()
    run = StoreRun(disk)
    disk.faults[call] = Fault.POWER_LOSS
    with suppress(PowerLoss):
        run_script(run)
    return run


def survivors(disk: FaultDisk, seed: int, samples: int) -> Iterator[FaultDisk]:
    """What may be found: nothing of what was not synced, all of it, some of it."""
    yield disk.after_power_loss()
    yield disk.copy()
    chance = random.Random(seed)
    for _ in range(samples):
        yield disk.after_any_power_loss(chance)


def go_on(run: StoreRun) -> None:
    """The store works after the start, and what it writes then is there after another one."""
    write_round(run, [Op("append", 0, 1, 2), Op("append", 1, 3, 1), Op("replace", 0, 1, 1)])
    run.upkeep_once()
    run.write()
    write_round(run, [Op("append", 0, 2, 3), Op("value", 3, 3)])
    run.check()
    run.disk = run.disk.after_power_loss()
    run.restart()


def test_the_script_does_everything() -> None:
    disk = FaultDisk()
    run = StoreRun(disk)
    run_script(run)
    run.check()
    calls = " ".join(disk.log)
    assert run.store.journal.segment > 8
    assert disk.names("aside")
    for what in ("truncate partitions/", "remove partitions/", "rename partitions/", "/snapshot-", "journal-3"):
        assert what in calls, what
    assert "remove partitions/1/00" in calls  # files of a log that goes on
    run.disk = disk.after_power_loss()
    run.restart()


LONG = (pytest.mark.exhaustive, pytest.mark.timeout(900))
SLICES = [pytest.param(first, 4, 4, marks=LONG) for first in range(4)]


@pytest.mark.parametrize(("first", "every", "samples"), [(5, 17, 1), *SLICES])
def test_power_is_lost_at_every_call(first: int, every: int, samples: int) -> None:
    calls = calls_of_script()
    assert calls > 500
    for call in range(CALLS_OF_A_START + 1 + first, calls + 1, every):
        run = until_power_loss(call)
        for disk in survivors(run.disk, call, samples):
            found = run.fork(disk)
            found.restart()
            go_on(found)


@pytest.mark.parametrize(("first", "every", "samples"), [(7, 29, 1), *SLICES])
def test_a_kill_at_every_call_and_power_lost_later(first: int, every: int, samples: int) -> None:
    for call in range(CALLS_OF_A_START + 1 + first, calls_of_script() + 1, every):
        run = until_power_loss(call)
        run.disk.after_kill()
        run.restart()
        for disk in survivors(run.disk, call, samples // 2):
            found = run.fork(disk)
            found.restart()
            go_on(found)


@pytest.mark.parametrize(
    ("first_call", "every", "step"),
    [(100, 400, 11), *(pytest.param(60 + n, 52, 1, marks=LONG) for n in (0, 13, 26, 39))],
)
def test_power_is_lost_at_every_call_of_a_start(first_call: int, every: int, step: int) -> None:
    """And again during the start after that."""
    cases = 0
    for call in range(first_call, calls_of_script() + 1, every):
        crashed = until_power_loss(call)
        for disk in survivors(crashed.disk, call, 1):
            for first in count(1, step):
                run = crashed.fork(disk.copy())
                run.disk.faults = {first: Fault.POWER_LOSS}
                try:
                    run.restart()
                except PowerLoss:
                    cases += 1
                else:
                    break
                for again in survivors(run.disk, first, 1):
                    found = run.fork(again)
                    found.disk.faults = {1 + (call + first) % 5: Fault.POWER_LOSS}
                    with suppress(PowerLoss):
                        found.restart()
                    last = run.fork(found.disk.after_any_power_loss(random.Random(call)))
                    last.restart()
                    go_on(last)
    assert cases > 10_000 / every / step
