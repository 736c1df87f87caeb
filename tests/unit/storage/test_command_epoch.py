"""The epoch of the write manager that commands a broker: once a command was carried out, no start forgets it."""

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from broker.command_fence import CommandFence
from broker.storage.store import COMMAND_EPOCH
from myqueue.protocol.errors import StaleEpoch
from tests.fault_disk import Fault, FaultDisk, PowerLoss
from tests.unit.storage.store_run import StoreRun
from tests.unit.storage.store_script import Op, write_round

EPOCHS = 6
MakeFence = Callable[[StoreRun], CommandFence]


def synced_fence(run: StoreRun) -> CommandFence:
    def store(epoch: int) -> None:
        run.set_value(COMMAND_EPOCH, str(epoch))
        run.write()

    return CommandFence(run.store.command_epoch, store)


def command(run: StoreRun, carried_out: list[int], fence_of: MakeFence) -> None:
    """Write managers replace each other; entries, cuts and changes of segments in between."""
    for epoch in range(run.store.command_epoch + 1, EPOCHS + 1):
        with fence_of(run).command(epoch):
            carried_out.append(epoch)
        write_round(run, [Op("append", 0, 1, 3), Op("large", 1, 0, epoch)])
        run.upkeep_once()
        run.write()


def test_a_folder_without_an_epoch_has_0() -> None:
    run = StoreRun(FaultDisk())
    assert run.store.command_epoch == 0
    with synced_fence(run).command(0):
        pass
    assert COMMAND_EPOCH not in run.store.values


def calls_of_commands() -> tuple[int, int]:
    run = StoreRun(FaultDisk())
    first = run.disk.calls
    command(run, [], synced_fence)
    assert run.store.journal.segment > 2
    return first + 1, run.disk.calls


FIRST_CALL, LAST_CALL = calls_of_commands()


def check(calls: range, fence_of: MakeFence) -> None:
    """Power is lost at each of these calls: what was carried out before counts after every start."""
    for call in calls:
        run = StoreRun(FaultDisk())
        run.disk.faults[call] = Fault.POWER_LOSS
        carried_out = [0]
        with suppress(PowerLoss):
            command(run, carried_out, fence_of)
        for disk in (run.disk.after_power_loss(), run.disk.copy(), run.disk.after_any_power_loss(random.Random(call))):
            found = run.fork(disk)
            found.restart()
            assert found.store.command_epoch in (carried_out[-1], carried_out[-1] + 1)  # the last may not have ended
            if carried_out[-1]:
                with pytest.raises(StaleEpoch), fence_of(found).command(carried_out[-1] - 1):
                    raise AssertionError("an older write manager's command was carried out")
            command(found, [], fence_of)
            assert found.store.command_epoch == EPOCHS


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(range(FIRST_CALL, LAST_CALL + 1, 7), id="some"),
        pytest.param(range(FIRST_CALL, LAST_CALL + 1), id="all", marks=pytest.mark.exhaustive),
    ],
)
def test_power_is_lost_between_commands(calls: range) -> None:
    check(calls, synced_fence)


def test_a_broker_that_does_not_wait_for_the_disk_is_found() -> None:
    def unsynced_fence(run: StoreRun) -> CommandFence:
        return CommandFence(run.store.command_epoch, lambda epoch: run.set_value(COMMAND_EPOCH, str(epoch)))

    with pytest.raises(AssertionError):
        check(range(FIRST_CALL, LAST_CALL + 1, 7), unsynced_fence)
