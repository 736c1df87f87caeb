"""Any order of appends, syncs of partition files, upkeep, kills, power losses, full disks and failed writes."""

import random
import threading
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from broker.storage.disk import DiskError, NoSpace
from broker.storage.journal import JournalFull
from broker.storage.real_disk import RealDisk
from tests.fault_disk import Fault, FaultDisk, PowerLoss
from tests.unit.storage.journal_rounds import SEGMENT_BYTES, Held, Store, begin, entry, recovered, started, state
from tests.waiting import throughout, until

SIZES = (0, 1, 700, 4095, 4096, 9000)


class JournalMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultDisk()
        self.store: Store | None = None  # None: no process runs
        self.allowed = [Held()]  # what the next start may find
        self.has_failed = False  # the process must end
        self.index = 0

    @initialize(recycles=st.booleans())
    def choose(self, recycles: bool) -> None:
        self.disk.recycles = recycles

    @precondition(lambda self: self.store is None)
    @rule()
    def start(self) -> None:
        store, recovery = recovered(self.disk)
        assert recovery.damage is None
        assert store.damage is None
        (held, *_) = [held for held in self.allowed if held.is_given_back_by(store)]
        self.allowed = [held.copy()]
        try:
            begin(store, recovery)
        except (PowerLoss, DiskError, NoSpace):
            self.disk.after_kill()
        else:
            store.held.acknowledged = held.acknowledged
            self.store = store
            self.has_failed = False

    @precondition(lambda self: self.store is not None and not self.has_failed)
    @rule(
        sizes=st.lists(st.sampled_from(SIZES), max_size=4).filter(lambda sizes: sum(sizes) < 15_000),
        group=st.integers(0, 2),
        changes=st.booleans(),
    )
    def append(self, sizes: list[int], group: int, changes: bool) -> None:
        assert self.store is not None
        records = [state(group, b"value %d" % self.index)] if changes else []
        for size in sizes:
            self.index += 1
            records.append(entry(group, self.index, random.Random(self.index).randbytes(size)))
        had_room = self.store.journal.has_room(sum(record.size_bytes for record in records))
        try:
            self.store.append(records)
        except JournalFull:
            assert not had_room
            self.store.in_flight = ()
        except NoSpace:
            """May be there after a start, unless another one takes its place."""
        except (PowerLoss, DiskError):
            self.has_failed = True

    @precondition(lambda self: self.store is not None and not self.has_failed)
    @rule()
    def sync_partition_files(self) -> None:
        assert self.store is not None
        self.store.sync()

    @precondition(lambda self: self.store is not None and not self.has_failed)
    @rule(prefill=st.booleans())
    def upkeep(self, prefill: bool) -> None:
        assert self.store is not None
        try:
            self.store.journal.prepare()
            if prefill:
                self.store.journal.prefill(8192)
        except NoSpace:
            """Tried again at the next turn."""
        except (PowerLoss, DiskError):
            self.has_failed = True

    @rule(after=st.integers(1, 4), fault=st.sampled_from(Fault))
    def fail(self, after: int, fault: Fault) -> None:
        self.disk.faults = {self.disk.calls + after: fault}

    @rule()
    def kill(self) -> None:
        self._end()
        self.disk.after_kill()

    @rule()
    def kill_and_lose_the_page_cache(self) -> None:
        self.kill()
        self.disk.after_cache_loss()

    @rule(seed=st.integers(0, 1 << 30))
    def lose_power(self, seed: int) -> None:
        self._end()
        self.disk = self.disk.after_any_power_loss(random.Random(seed))

    def _end(self) -> None:
        if self.store is not None:
            self.allowed = self.store.outcomes()
            self.store = None


@pytest.mark.parametrize(
    "examples", [100, pytest.param(2000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(600)])]
)
def test_the_journal_against_a_model(examples: int) -> None:
    run_state_machine_as_test(JournalMachine, settings=settings(max_examples=examples, stateful_step_count=60))


def test_upkeep_beside_the_writer(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "data")
    store = started(disk)
    stop = threading.Event()
    errors: list[BaseException] = []

    def upkeep() -> None:
        try:
            while not stop.is_set():
                store.journal.release(store.journal.segment)
                store.journal.prepare()
                store.journal.prefill(8192)
        except BaseException as error:  # noqa: BLE001 -- shown below
            errors.append(error)

    thread = threading.Thread(target=upkeep)
    thread.start()

    def is_appended(number: int) -> bool:
        try:
            store.append([entry(1, number, b"x" * 9000), state(number % 7, b"%d" % number)])
        except JournalFull:  # until upkeep has had its turn
            return False
        return True

    try:
        for number in range(1, 300):
            store.held.entries.clear()
            store.places.clear()
            until(partial(is_appended, number), within_s=10, pause_s=0.001, what="there is a segment to go on in")
    finally:
        stop.set()
        thread.join()
    store.append([state(1, b"last")])
    store.journal.close()
    assert errors == []
    found, recovery = recovered(disk)
    assert recovery.damage is None
    assert store.held.is_given_back_by(found)
    assert store.journal.segment > 20
    assert len(disk.names()) <= 5
    found.journal.close()
    disk.close()


class SlowZeros(FaultDisk):
    """A write of zeros takes until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def call(self, what: str) -> Fault | None:
        if what.endswith(f"+{SLOW_BYTES}"):
            self._lock.release()
            self.has_begun.set()
            assert self.may_go_on.wait(10)
            self._lock.acquire()
        return super().call(what)


SLOW_BYTES = 12_345


def test_a_segment_does_not_begin_where_zeros_are_being_written() -> None:
    disk = SlowZeros()
    store = started(disk, max_segments=3)
    while store.journal.prepare():
        """Two are free."""
    upkeep = threading.Thread(target=store.journal.prefill, args=(SLOW_BYTES,))
    upkeep.start()
    assert disk.has_begun.wait(10)
    first = store.journal.segment
    index = 0
    while store.journal.segment == first:
        index += 1
        store.append([entry(1, index, b"x" * 9000)])
        store.sync()
    second = store.journal.segment

    def fill() -> None:
        nonlocal index
        while store.journal.segment == second:
            index += 1
            store.append([entry(1, index, b"x" * 9000)])
            store.sync()

    writer = threading.Thread(target=fill)
    writer.start()
    try:
        throughout(lambda: store.journal.segment == second, for_s=0.3, what="the segment is not begun")
    finally:
        disk.may_go_on.set()
        upkeep.join()
        writer.join()
    assert store.journal.segment == second + 1
    found, recovery = recovered(disk)
    assert recovery.damage is None
    assert store.held.is_given_back_by(found)


def test_segments_are_few_however_often_it_starts() -> None:
    """When partition files are synced after each start, not before."""
    disk = FaultDisk()
    for number in range(1, 30):
        store = started(disk)
        store.sync()
        store.append([entry(1, number, b"x")])
        store.journal.prepare()
        assert disk.used_bytes <= 6 * SEGMENT_BYTES
