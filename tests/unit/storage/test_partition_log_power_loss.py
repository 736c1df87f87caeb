"""The log of a partition after its process ended at every call of a script, and after every outcome of a power loss."""

import random
from collections.abc import Callable

import pytest

from broker.storage.disk import NoSpace
from broker.storage.entry import Entry
from broker.storage.group import LogPosition
from broker.storage.open_files import OpenFiles
from broker.storage.partition_log import PartitionLog
from tests.fault_disk import Fault, FaultDisk, PowerLoss
from tests.logs import GROUP, JournaledLog, append, cut_before, messages, plain_all, write

ROUNDS = 30


class Script:
    """Thirty rounds of a broker; `entries` is what is durable in the journal at any time."""

    def __init__(self, disk: FaultDisk, seed: int) -> None:
        self.journaled = JournaledLog(disk, segment_bytes=1500)
        self.entries: list[Entry] = []
        self._chance = random.Random(seed)
        self._term = 1

    def run(self) -> None:
        for number in range(ROUNDS):
            self._write(number)
            log = self.journaled.log
            if number % 2:
                log.flush(1000)
            if number % 5 == 4:
                log.sync()
            if number % 7 == 6:
                self.journaled.next_segment()
            if number % 11 == 10:
                self.journaled.cut_before(log.group.first_index + (len(self.entries) - log.group.first_index) // 2)
                log.remove_below()
        self.journaled.log.sync()
        self.journaled.next_segment()

    def _write(self, number: int) -> None:
        log = self.journaled.log
        first = len(self.entries) + 1
        if number % 6 == 5:
            self._term += 1
            first = max(log.group.first_index, first - self._chance.randrange(1, 12))
        tail = log.tail_before(first)
        added: list[Entry] = []
        for _ in range(self._chance.randrange(1, 6)):
            body = self._chance.randbytes(self._chance.choice((3, 60, 700)))
            added.append(messages(tail, body, term=self._term, time=number))
            tail = tail.after(added[-1])
        self.entries = self.entries[: first - 1] + added
        self.journaled.write(added)

    def check(self, disk: FaultDisk) -> None:
        self.journaled.disk = disk
        self.journaled.start()
        log = self.journaled.log
        first = log.group.first_index
        assert plain_all(list(log.stream(first, 0))) == self.entries[first - 1 :]
        assert log.tail.next_index == len(self.entries) + 1
        log.sync()
        at: int | None = first
        while at is not None:
            at = log.scrub(at, 500)


OUTCOMES: dict[str, Callable[[FaultDisk, int], FaultDisk]] = {
    "nothing unsynced is there": lambda disk, _: disk.after_power_loss(),
    "everything is there": lambda disk, _: disk.copy(),
    "some of it is there": lambda disk, seed: disk.after_any_power_loss(random.Random(seed)),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_nothing_is_lost_whenever_power_is(outcome: str) -> None:
    whole = FaultDisk()
    Script(whole, 1).run()
    assert whole.calls > 60
    for call in range(1, whole.calls + 1):
        disk = FaultDisk(faults={call: Fault.POWER_LOSS})
        script = Script(disk, 1)
        with pytest.raises(PowerLoss):
            script.run()
        script.check(OUTCOMES[outcome](disk, call))


def test_what_is_synced_needs_no_journal() -> None:
    disk = FaultDisk()
    script = Script(disk, 2)
    script.run()
    assert script.journaled.log.unsynced_segment is None
    script.check(disk.after_power_loss())


def started(disk: FaultDisk, position: LogPosition | None = None, replace_from: int | None = None) -> PartitionLog:
    log = PartitionLog(OpenFiles(disk), GROUP, segment_bytes=1000)
    log.recover(position, replace_from)
    return log


def test_the_journal_segment_of_the_oldest_unsynced_entry_is_kept() -> None:
    log = started(FaultDisk())
    assert log.unsynced_segment is None
    append(log, [b"a"], segment=3)
    append(log, [b"b"], segment=4)
    assert log.unsynced_segment == 3
    log.flush(1000)
    assert log.unsynced_segment == 3
    log.sync()
    assert log.unsynced_segment is None
    append(log, [b"c"], segment=4)
    assert log.unsynced_segment == 4


def test_a_sync_that_fails_leaves_the_journal_segment_needed() -> None:
    disk = FaultDisk()
    log = started(disk)
    append(log, [b"a"], segment=3)
    disk.faults = {disk.calls + 2: Fault.NO_SPACE}
    with pytest.raises(NoSpace):
        log.sync()
    assert log.unsynced_segment == 3
    append(log, [b"b"], segment=4)
    assert log.unsynced_segment == 3
    log.sync()
    assert log.unsynced_segment is None


def test_entries_written_during_a_sync_are_not_covered_by_it() -> None:
    disk = FaultDisk()
    log = started(disk)
    append(log, [b"a"], segment=3)
    syncing = disk.sync_folder

    def sync_and_write(folder: str = "") -> None:
        assert log.unsynced_segment == 3
        syncing(folder)
        append(log, [b"b"], segment=5)

    disk.sync_folder = sync_and_write  # type: ignore[method-assign]
    assert log.sync().tail.next_index == 2
    assert log.unsynced_segment == 5


def test_what_lies_behind_the_position_is_cut_off() -> None:
    disk = FaultDisk()
    log = started(disk)
    append(log, [b"a" * 300, b"b" * 300])
    position = log.sync()
    append(log, [b"c" * 300] * 5)
    log.flush(1 << 20)
    sizes = {name: len(disk.contents(f"partitions/7/{name}")) for name in disk.names("partitions/7")}
    assert len(sizes) > 2
    log = started(disk, position)
    assert log.tail == position.tail
    assert disk.names("partitions/7") == [f"{0:020d}-1.log", f"{0:020d}-1.idx"]
    assert len(disk.contents(f"partitions/7/{0:020d}-1.log")) == position.at


def test_full_disk_keeps_entries_in_memory_and_frees_what_retention_has_passed() -> None:
    disk = FaultDisk()
    log = started(disk)
    entries = append(log, [bytes([number]) * 300 for number in range(9)])
    log.sync()
    disk.limit_bytes = disk.used_bytes
    more = append(log, [b"more"] * 3)
    with pytest.raises(NoSpace):
        log.flush(1 << 20)
    assert plain_all(list(log.stream(1, 1))) == entries + more
    cut_before(log, 10)
    used = disk.used_bytes
    assert log.remove_below() >= 9 * 300
    assert disk.used_bytes < used
    assert log.flush(1 << 20)
    assert plain_all(list(log.stream(10, 1))) == more


def test_files_of_a_suffix_that_is_being_replaced_are_not_removed_first() -> None:
    """The cut would not find its place."""
    log = started(FaultDisk())
    append(log, [b"old" * 100] * 9)
    log.sync()
    tail = log.tail_before(8)
    other = messages(tail, b"other", term=2)
    write(log, [other])
    cut_before(log, 9)
    log.remove_below()
    append(log, [b"more"], term=2)
    log.sync()
    assert log.remove_below() > 0
    assert [bytes(entry.body) for entry in log.stream(9, 1)] == [b"more"]


def test_a_file_of_replaced_entries_does_not_come_back() -> None:
    disk = FaultDisk()
    log = started(disk)
    append(log, [b"old" * 150] * 4)
    log.sync()
    stale = [name for name in disk.names("partitions/7") if not name.endswith("-1.log")]
    assert stale
    write(log, [messages(log.tail_before(2), b"other", term=2)])
    position = log.sync()
    after = disk.after_power_loss()
    assert not set(stale) & {name for name in after.names("partitions/7") if name.endswith(".log")}
    write(log, [messages(log.tail, b"more", term=2)])
    assert [entry.term for entry in started(after, position, 3).stream(1, 1)] == [1, 2]
