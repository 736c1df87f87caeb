"""The log of a partition against a list: appends, conflicts, retention, flushes, syncs, and the ends of a process."""

import random
from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.storage.disk import DiskError, NoSpace
from broker.storage.entry import Entry
from tests.fault_disk import Fault, FaultDisk, PowerLoss
from tests.logs import JournaledLog, messages, noop, plain, plain_all

SIZES = st.sampled_from([0, 1, 30, 90, 400])


class PartitionLogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultDisk()
        self.journaled = JournaledLog(self.disk, segment_bytes=700)
        self.entries: list[Entry] = []  # from index 1 on, also those that retention has passed
        self.term = 1
        self.snapshots_lag = False

    @initialize(lag=st.booleans())
    def choose(self, lag: bool) -> None:
        self.snapshots_lag = lag

    @property
    def first_index(self) -> int:
        return self.journaled.log.group.first_index

    def write(self, first: int, sizes: list[int]) -> None:
        tail = self.journaled.log.tail_before(first)
        added: list[Entry] = []
        for number, size in enumerate(sizes):
            if size:
                body = bytes([len(self.entries) % 251, self.term % 251, number]) * size
                added.append(messages(tail, body, count=1 + size % 3, term=self.term, time=10 * len(self.entries)))
            else:
                added.append(noop(tail, term=self.term))
            tail = tail.after(added[-1])
        self.entries = self.entries[: first - 1] + added
        self.journaled.write(added)

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=4))
    def append(self, sizes: list[int]) -> None:
        self.write(len(self.entries) + 1, sizes)

    @precondition(lambda self: len(self.entries) >= self.first_index)
    @rule(sizes=st.lists(SIZES, min_size=1, max_size=4), data=st.data())
    def replace_a_suffix(self, sizes: list[int], data: st.DataObject) -> None:
        self.term += 1
        self.write(data.draw(st.integers(self.first_index, len(self.entries))), sizes)

    @precondition(lambda self: len(self.entries) >= self.first_index)
    @rule(data=st.data(), lag=st.integers(0, 3))
    def cut_the_start(self, data: st.DataObject, lag: int) -> None:
        """In some runs snapshots come later than cuts. Then a full disk waits for them: it may not free files."""
        lag = lag if self.snapshots_lag else 0
        index = data.draw(st.integers(self.first_index, len(self.entries) + 1))
        snapshot = max(self.journaled.log.snapshot_index, index - 1 - lag)
        self.journaled.cut_before(index, snapshot)

    @rule(max_bytes=st.sampled_from([1, 300, 5000]))
    def flush(self, max_bytes: int) -> None:
        self.journaled.log.flush(max_bytes)

    @rule()
    def sync(self) -> None:
        log = self.journaled.log
        position = log.sync()
        assert position.tail == log.tail
        assert log.unsynced_segment is None
        assert log.unflushed_bytes == 0

    @rule()
    def begin_another_journal_segment(self) -> None:
        self.journaled.next_segment()

    @rule()
    def remove_files(self) -> None:
        self.journaled.log.remove_below()

    def upkeep(self) -> None:
        log = self.journaled.log
        log.flush(600)
        log.remove_below()
        log.sync()

    @rule()
    def kill(self) -> None:
        self.journaled.start()

    @rule(seed=st.integers(0, 1000))
    def lose_power(self, seed: int) -> None:
        self.disk = self.journaled.disk = self.disk.after_any_power_loss(random.Random(seed))
        self.journaled.start()

    @rule(seed=st.integers(0, 1000), calls=st.integers(1, 8), is_kill=st.booleans())
    def end_during_upkeep(self, seed: int, calls: int, is_kill: bool) -> None:
        self.disk.faults = {self.disk.calls + calls: Fault.POWER_LOSS}
        with suppress(PowerLoss):
            self.upkeep()
        if is_kill:
            self.disk.after_kill()
            self.kill()
        else:
            self.lose_power(seed)

    @precondition(lambda self: not self.snapshots_lag)
    @rule(calls=st.integers(1, 8))
    def fill_the_disk_during_upkeep(self, calls: int) -> None:
        self.disk.faults = {self.disk.calls + calls: Fault.NO_SPACE}
        try:
            self.upkeep()
        except NoSpace:
            self.disk.faults = {}
        except DiskError:  # in a sync
            self.end_after_an_error()
        self.disk.faults = {}

    @rule(calls=st.integers(1, 8))
    def fail_during_upkeep(self, calls: int) -> None:
        self.disk.faults = {self.disk.calls + calls: Fault.ERROR}
        try:
            self.upkeep()
        except DiskError:
            self.end_after_an_error()
        self.disk.faults = {}

    def end_after_an_error(self) -> None:
        """The process ends; the page cache shows what it did not write, or has forgotten it."""
        self.disk.after_kill()
        if len(self.entries) % 2:
            self.disk.after_cache_loss()
        self.kill()

    @rule(seed=st.integers(0, 1000), calls=st.integers(1, 8))
    def end_during_a_start(self, seed: int, calls: int) -> None:
        self.disk.faults = {self.disk.calls + calls: Fault.POWER_LOSS}
        with suppress(PowerLoss):
            self.journaled.start()
        self.lose_power(seed)

    @rule(max_bytes=st.sampled_from([1, 500, 1 << 20]))
    def scrub(self, max_bytes: int) -> None:
        at: int | None = 1
        while at is not None:
            following = self.journaled.log.scrub(at, max_bytes)
            assert following is None or following > at
            at = following

    @rule(data=st.data(), max_bytes=st.sampled_from([0, 300, 1 << 20]))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        log = self.journaled.log
        alive = self.entries[self.first_index - 1 :]
        if not alive:
            return
        wanted = data.draw(st.sampled_from(alive))
        assert plain(log.at_index(wanted.index)) == wanted
        found = log.from_index(wanted.index, max_bytes)
        assert plain_all(found) == self.entries[wanted.index - 1 : wanted.index - 1 + len(found)]
        tail = log.tail_at(wanted.index)
        assert tail.next_index == wanted.index + 1
        assert log.fields(wanted.index) == (
            wanted.term,
            wanted.append_time,
            wanted.base_offset,
            sum(entry.size_bytes for entry in self.entries[: wanted.index]),
        )
        later = [entry.index for entry in alive if entry.append_time >= wanted.append_time]
        assert log.first_appended_since(wanted.append_time, len(self.entries) + 1) == later[0]
        assert log.first_ending_beyond(tail.end_bytes - 1, len(self.entries) + 1) <= wanted.index
        if wanted.count:
            assert plain(log.at_offset(wanted.base_offset)) == wanted
            run = log.from_offset(wanted.end_offset - 1, len(self.entries), max_bytes)
            with_messages = [entry for entry in self.entries[wanted.index - 1 :] if entry.count]
            assert plain_all(run) == with_messages[: len(run)]
            assert log.place_of(wanted.base_offset) == (tail.end_bytes - wanted.size_bytes, wanted.append_time)

    @invariant()
    def everything_is_there(self) -> None:
        log = self.journaled.log
        assert log.tail.next_index == len(self.entries) + 1
        needed_from = min(self.first_index, log.snapshot_index + 1)
        assert plain_all(list(log.stream(needed_from, 0))) == self.entries[needed_from - 1 :]
        terms = {entry.index: entry.term for entry in self.entries}
        runs = log.terms(len(self.entries))
        changes = [
            (index, terms[index])
            for index in range(self.first_index, len(self.entries) + 1)
            if index == self.first_index or terms[index] != terms[index - 1]
        ]
        assert list(runs) == changes

    def teardown(self) -> None:
        self.journaled.files.close()


PartitionLogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_the_log_is_a_list = PartitionLogMachine.TestCase
