"""The log of a partition against a list: appends, conflicts, retention, flushes, syncs, and the ends of a process."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.storage.disk import DiskError, NoSpace
from broker.storage.entry import Entry
from tests.fault_disk import Fault, FaultDisk, PowerLoss
from tests.logs import JournaledLog, messages, noop, plain, plain_all

SIZES = [0, 1, 30, 90, 400]
STEPS = 600


class LogModel:
    """A log on a disk that fails, and what should be in it."""

    def __init__(self) -> None:
        self.disk = FaultDisk()
        self.journaled = JournaledLog(self.disk, segment_bytes=700)
        self.entries: list[Entry] = []  # from index 1 on, also those that retention has passed
        self._term = 1
        self._time = 0

    @property
    def first_index(self) -> int:
        return self.journaled.log.group.first_index

    @property
    def next_index(self) -> int:
        return len(self.entries) + 1

    def write(self, first: int, sizes: list[int]) -> None:
        if first < self.next_index:
            self._term += 1
        tail = self.journaled.log.tail_before(first)
        added: list[Entry] = []
        self._time += 10
        for number, size in enumerate(sizes):
            if size:
                body = bytes([len(self.entries) % 251, self._term % 251, number]) * size
                added.append(messages(tail, body, count=1 + size % 3, term=self._term, time=self._time))
            else:
                added.append(noop(tail, term=self._term, time=self._time))
            tail = tail.after(added[-1])
        self.entries = self.entries[: first - 1] + added
        self.journaled.write(added)

    def sync(self) -> None:
        log = self.journaled.log
        position = log.sync()
        assert position.tail == log.tail
        assert log.unsynced_segment is None
        assert log.unflushed_bytes == 0

    def upkeep(self, fault: Fault | None, calls: int, seed: int) -> None:
        log = self.journaled.log
        self.disk.faults = {} if fault is None else {self.disk.calls + calls: fault}
        try:
            log.flush(600)
            log.remove_below()
            log.sync()
        except NoSpace:
            self.disk.faults = {}
        except DiskError:
            self.disk.after_kill()
            if seed % 2:
                self.disk.after_cache_loss()
            self.end(None)
        except PowerLoss:
            self.disk.after_kill()
            self.end(seed if seed % 3 else None)
        self.disk.faults = {}

    def end(self, seed: int | None) -> None:
        """None: the process is killed; else power is lost as well. The start is interrupted now and then."""
        if seed is not None:
            self.disk = self.journaled.disk = self.disk.after_any_power_loss(random.Random(seed))
            if seed % 4 == 0:
                self.disk.faults = {self.disk.calls + 1 + seed % 5: Fault.POWER_LOSS}
                try:
                    self.journaled.start()
                except PowerLoss:
                    self.end(seed + 1)
                    return
        self.disk.faults = {}
        self.journaled.start()

    def scrub(self, max_bytes: int) -> None:
        at: int | None = 1
        while at is not None:
            following = self.journaled.log.scrub(at, max_bytes)
            assert following is None or following > at
            at = following

    def read(self, index: int, max_bytes: int) -> None:
        log = self.journaled.log
        alive = self.entries[self.first_index - 1 :]
        wanted = self.entries[index - 1]
        assert plain(log.at_index(index)) == wanted
        found = log.from_index(index, max_bytes)
        assert plain_all(found) == self.entries[index - 1 : index - 1 + len(found)]
        tail = log.tail_at(index)
        assert tail.next_index == index + 1
        end_bytes = sum(entry.size_bytes for entry in self.entries[:index])
        assert log.fields(index) == (wanted.term, wanted.append_time, wanted.base_offset, end_bytes)
        later = [entry.index for entry in alive if entry.append_time >= wanted.append_time]
        assert log.first_appended_since(wanted.append_time, self.next_index) == later[0]
        assert log.first_ending_beyond(tail.end_bytes - 1, self.next_index) <= index
        if wanted.count:
            assert plain(log.at_offset(wanted.base_offset)) == wanted
            run = log.from_offset(wanted.end_offset - 1, len(self.entries), max_bytes)
            with_messages = [entry for entry in self.entries[index - 1 :] if entry.count]
            assert plain_all(run) == with_messages[: len(run)]
            assert log.place_of(wanted.base_offset) == (tail.end_bytes - wanted.size_bytes, wanted.append_time)

    def check(self) -> None:
        log = self.journaled.log
        assert log.tail.next_index == self.next_index
        assert log.tail.end_bytes == sum(entry.size_bytes for entry in self.entries)
        assert plain_all(list(log.stream(self.first_index, 0))) == self.entries[self.first_index - 1 :]
        terms = {entry.index: entry.term for entry in self.entries}
        changes = [
            (index, terms[index])
            for index in range(self.first_index, self.next_index)
            if index == self.first_index or terms[index] != terms[index - 1]
        ]
        assert list(log.terms(len(self.entries))) == changes


class PartitionLogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = LogModel()

    @rule(sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=5))
    def append(self, sizes: list[int]) -> None:
        self.model.write(self.model.next_index, sizes)

    @precondition(lambda self: self.model.first_index < self.model.next_index)
    @rule(sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=5), data=st.data())
    def replace_a_suffix(self, sizes: list[int], data: st.DataObject) -> None:
        self.model.write(data.draw(st.integers(self.model.first_index, self.model.next_index - 1)), sizes)

    @precondition(lambda self: self.model.first_index < self.model.next_index)
    @rule(data=st.data())
    def cut_the_start(self, data: st.DataObject) -> None:
        self.model.journaled.cut_before(data.draw(st.integers(self.model.first_index, self.model.next_index)))

    @rule(max_bytes=st.sampled_from([1, 300, 5000]))
    def flush(self, max_bytes: int) -> None:
        self.model.journaled.log.flush(max_bytes)

    @rule()
    def sync(self) -> None:
        self.model.sync()

    @rule()
    def begin_another_journal_segment(self) -> None:
        self.model.journaled.next_segment()

    @rule(fault=st.none() | st.sampled_from(Fault), calls=st.integers(1, 8), seed=st.integers(0, 1000))
    def upkeep(self, fault: Fault | None, calls: int, seed: int) -> None:
        self.model.upkeep(fault, calls, seed)

    @rule(seed=st.none() | st.integers(0, 1000))
    def end(self, seed: int | None) -> None:
        self.model.end(seed)

    @precondition(lambda self: self.model.first_index < self.model.next_index)
    @rule(data=st.data(), max_bytes=st.sampled_from([0, 300, 1 << 20]))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        self.model.read(data.draw(st.integers(self.model.first_index, self.model.next_index - 1)), max_bytes)
        self.model.scrub(max_bytes)

    @invariant()
    def everything_is_there(self) -> None:
        self.model.check()


PartitionLogMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
test_the_log_is_a_list = PartitionLogMachine.TestCase


def run_long_life(seed: int) -> None:
    chance = random.Random(seed)
    model = LogModel()
    for _ in range(STEPS):
        log = model.journaled.log
        step = chance.random()
        sizes = [chance.choice(SIZES) for _ in range(chance.randint(1, 5))]
        if step < 0.30 or model.first_index == model.next_index:
            model.write(model.next_index, sizes)
        elif step < 0.45:
            model.write(max(model.first_index, model.next_index - chance.randint(1, 12)), sizes)
        elif step < 0.53:
            model.journaled.cut_before(min(model.next_index, model.first_index + chance.randint(1, 25)))
        elif step < 0.63:
            log.flush(chance.choice((1, 300, 5000)))
        elif step < 0.70:
            model.sync()
        elif step < 0.77:
            model.journaled.next_segment()
        elif step < 0.88:
            model.upkeep(chance.choice((None, *Fault)), chance.randint(1, 8), chance.randint(0, 1000))
        elif step < 0.95:
            model.end(chance.choice((None, chance.randint(0, 1000))))
        else:
            model.read(chance.randrange(model.first_index, model.next_index), chance.choice((0, 300, 1 << 20)))
            model.scrub(chance.choice((1, 500, 1 << 20)))
        model.check()


@pytest.mark.parametrize("seed", range(12))
def test_a_long_life(seed: int) -> None:
    run_long_life(seed)


@pytest.mark.exhaustive
def test_many_long_lives() -> None:
    for seed in range(1000, 1400):
        run_long_life(seed)
