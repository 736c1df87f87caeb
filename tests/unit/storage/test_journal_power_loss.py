"""Power is lost at any call, and any sectors that were not synced are lost with it."""

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from broker.storage.disk import DiskError, NoSpace
from tests.fault_disk import Fault, FaultDisk, PowerLoss
from tests.unit.storage.journal_rounds import (
    SMALL_SEGMENT_BYTES,
    Held,
    Store,
    begin,
    entry,
    recovered,
    small_journal,
    small_round,
    started,
    state,
)

ROUNDS = 30


def small(disk: FaultDisk) -> tuple[Store, Held]:
    """Recovered without damage, and what was found."""
    store, recovery = recovered(disk, SMALL_SEGMENT_BYTES)
    assert recovery.damage is None
    assert store.damage is None
    return store, store.held


def found_after(disk: FaultDisk, before: Store) -> Held:
    """One of what power loss allows."""
    found, _ = small(disk)
    allowed = [held for held in before.outcomes() if held.is_given_back_by(found)]
    assert allowed, "acknowledged and lost, or never written"
    return allowed[0]


def interrupted(disk: FaultDisk, rounds: int = ROUNDS) -> Store:
    """The script, up to the fault that is set."""
    store, recovery = recovered(disk, SMALL_SEGMENT_BYTES)
    try:
        begin(store, recovery)
        small_journal(disk, rounds, store=store)
    except PowerLoss:
        return store
    raise AssertionError("no fault was met")


def calls_of_the_script(recycles: bool) -> int:
    disk = FaultDisk(recycles=recycles)
    small_journal(disk, ROUNDS)
    return disk.calls


def losses(disk: FaultDisk, chance: random.Random, samples: int) -> Iterator[FaultDisk]:
    yield disk.after_power_loss()
    yield disk.copy()
    for _ in range(samples):
        yield disk.after_any_power_loss(chance)


@pytest.mark.parametrize("recycles", [True, False])
@pytest.mark.parametrize("samples", [1, pytest.param(10, marks=[pytest.mark.exhaustive, pytest.mark.timeout(600)])])
def test_power_is_lost_at_every_call_of_a_script(recycles: bool, samples: int) -> None:
    """And again during the start after it, at every call, and the journal goes on from there."""
    chance = random.Random(samples)
    starts = 0
    for call in range(1, calls_of_the_script(recycles) + 1):
        disk = FaultDisk(recycles=recycles, faults={call: Fault.POWER_LOSS})
        store = interrupted(disk)
        found = [(lost, found_after(lost, store)) for lost in losses(disk, chance, samples)]
        for lost, held in found if samples > 1 else chance.sample(found, 1):
            for again in lost_while_starting(lost, held, chance):
                goes_on(again, held)
                starts += 1
    assert starts > 200


def lost_while_starting(disk: FaultDisk, held: Held, chance: random.Random) -> Iterator[FaultDisk]:
    """What was torn at the first start never comes back: from now on exactly `held` is there."""
    yield disk.copy()
    for call in itertools.count(1):
        starting = disk.copy()
        starting.faults = {call: Fault.POWER_LOSS}
        store, recovery = recovered(starting, SMALL_SEGMENT_BYTES)
        try:
            begin(store, recovery)
        except PowerLoss:
            lost = starting.after_any_power_loss(chance)
            found, _ = small(lost)
            assert held.is_given_back_by(found)
            yield lost
        else:
            return


def goes_on(disk: FaultDisk, held: Held) -> None:
    """Writes other entries where some were torn."""
    store = started(disk, SMALL_SEGMENT_BYTES)
    assert held.is_given_back_by(store)
    expected = held.copy()
    for number in (1, 2, ROUNDS + 1):
        records = small_round(number, b"other")
        store.append(records)
        expected.add(records)
        if number == 2:
            store.sync()
            expected.entries.clear()
            store.journal.prepare()
    disk.after_kill()
    found, _ = small(disk.after_power_loss())
    assert expected.is_given_back_by(found)


@pytest.mark.parametrize("rounds", range(1, 13))
def test_every_subset_of_the_sectors_of_one_write(rounds: int) -> None:
    """Onto what an earlier generation left there, whole frames at the same place included. Heads, too."""
    disk = FaultDisk()
    store = small_journal(disk, ROUNDS, sync_every=1)
    for number in range(1, rounds):
        store.append(small_round(ROUNDS + number))
        store.sync()
    disk.faults = {disk.calls + 1: Fault.POWER_LOSS}
    with pytest.raises(PowerLoss):
        store.append(small_round(ROUNDS + rounds))
    sectors = disk.unsynced()
    assert len(sectors) == 8
    whole = 0
    for mask in range(256):
        kept = {place for bit, place in enumerate(sectors) if mask >> bit & 1}
        lost = disk.after_power_loss(lambda name, sector, kept=kept: (name, sector) in kept)  # type: ignore[misc]
        found = found_after(lost, store)
        whole += found.values == store.outcomes()[1].values and found.entries == store.outcomes()[1].entries
        if mask % 16 == 0:
            goes_on(lost, found)
    assert whole < 256


def test_sampled_subsets_of_a_large_write() -> None:
    chance = random.Random(2)
    disk = FaultDisk()
    store = started(disk)
    for number in range(1, 40):
        store.append(
            [entry(1, number, chance.randbytes(chance.randint(1, 14_000)), b"d" * 100), state(2, b"%d" % number)]
        )
        store.sync()
        store.journal.prepare()
    complete = 0
    for _ in range(30):
        trial = disk.copy()
        again = started(trial)
        trial.faults = {trial.calls + 1: Fault.POWER_LOSS}
        body = chance.randbytes(15_000)
        with pytest.raises(PowerLoss):
            again.append([entry(1, 1000 + index, body[index * 500 : (index + 1) * 500]) for index in range(20)])
        sectors = trial.unsynced()
        assert len(sectors) > 20
        for missing in [*({place} for place in sectors), *(set(chance.sample(sectors, 3)) for _ in range(20)), set()]:
            lost = trial.after_power_loss(lambda *place, missing=missing: place not in missing)
            found, recovery = recovered(lost)
            assert recovery.damage is None
            allowed = [held for held in again.outcomes() if held.is_given_back_by(found)]
            assert allowed
            complete += not missing and (1, 1000) in found.held.entries
    assert complete == 30, "what was not torn is there"


@pytest.mark.parametrize("fault", [Fault.NO_SPACE, Fault.ERROR])
def test_errors_at_every_call(fault: Fault) -> None:
    """A full disk: the call is repeated. A failed write or sync: the process ends, and the next start does not believe
    what the page cache holds."""
    met = 0
    for call in range(1, calls_of_the_script(recycles=True) + 1):
        disk = FaultDisk(faults={call: fault})
        store, recovery = recovered(disk, SMALL_SEGMENT_BYTES)
        try:
            starts = recovery.starts + 1
            _repeated(partial(store.journal.begin, starts, store.head, replay_from=store.replay_from))
            _repeated(store.journal.prepare)
            for number in range(1, ROUNDS + 1):
                _repeated(partial(store.append, small_round(number)))
                store.sync()
                _repeated(store.journal.prepare)
        except DiskError:
            assert fault is Fault.ERROR
            disk.after_kill()
            again, recovery = recovered(disk, SMALL_SEGMENT_BYTES)
            (held, *_) = [held for held in store.outcomes() if held.is_given_back_by(again)]
            begin(again, recovery)
            found, _ = small(disk.after_power_loss())
            assert held.is_given_back_by(found), "said at the start, and gone after power loss"
            met += 1
        else:
            assert fault is Fault.NO_SPACE
            found, _ = small(disk.after_power_loss())
            assert store.held.is_given_back_by(found)
            met += 1
    assert met > 40


def _repeated(call: Callable[[], object]) -> None:
    try:
        call()
    except NoSpace:
        call()


def test_a_failed_sync_is_not_survived_by_the_page_cache() -> None:
    """The kernel drops what it could not write: then it was never acknowledged, and it is not there."""
    disk = FaultDisk()
    store = small_journal(disk, 5)
    disk.faults = {disk.calls + 1: Fault.ERROR}
    with pytest.raises(DiskError):
        store.append(small_round(6))
    with pytest.raises(DiskError, match="an earlier write failed"):
        store.append(small_round(7))
    disk.after_kill()
    disk.after_cache_loss()
    found, _ = small(disk)
    assert store.held.is_given_back_by(found)
    assert (0, 6) not in found.held.entries
