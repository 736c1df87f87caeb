"""Power is lost at every call of a script of what a broker writes: all that was durable is there again, and no more.

The threads are run by hand, so that every call has a number.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
import structlog

from broker.raft.configuration import GroupId, MemberId, initial_configuration
from broker.raft.dedupe import DedupeSnapshot
from broker.raft.effects import Persist
from broker.raft.entry import Kind, LogEntry
from broker.raft.snapshot import HardState, Snapshot
from broker.storage.entry import entry_of
from broker.storage.group import Group, Settings, SnapshotState
from broker.storage.journal import Journal
from broker.storage.partition_log import PartitionLog
from broker.storage.recovery import open_store
from broker.storage.replay import stored_replica
from broker.storage.round import Round
from broker.storage.snapshot_files import read_snapshot
from broker.storage.space import FreeSpace
from broker.storage.store import Store
from broker.storage.upkeep import Upkeep
from broker.storage.writer import Change, Writer
from myqueue.protocol import batch as batches
from myqueue.protocol.batch import Message
from tests.broker_store import BROKER_ID, TOPIC_ID
from tests.fault_disk import Fault, FaultDisk, PowerLoss

ME = MemberId(BROKER_ID, 5)
VOTERS = initial_configuration([ME, MemberId(2, 2), MemberId(3, 3)])
LOGGER = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(50))
KEY_RECORD_BYTES = 28
DROPPING_STEPS = 2  # at the end of the script


def entry(index: int, term: int, size: int = 300) -> LogEntry:
    """Of message `index`, so that offsets follow indexes."""
    data = batches.encode(TOPIC_ID, 0, [Message(b"%d-%d" % (term, index) * (size // 5))])
    return LogEntry(index, term, Kind.MESSAGES, index - 1, 100 * index, 1, None, (), data)


def snapshot(start_index: int, index: int, previous_term: int) -> Snapshot:
    keys = DedupeSnapshot(bytes([index]) * KEY_RECORD_BYTES, b"")
    return Snapshot(start_index, start_index - 1, previous_term, index, VOTERS, 0, keys)


@dataclass(frozen=True)
class Replicated:
    """What the script has written of one replica: the model."""

    hard: HardState = field(default_factory=HardState)
    first_index: int = 1
    entries: tuple[tuple[int, int, bytes], ...] = ()
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(configuration=VOTERS))

    def appended(self, entries: list[LogEntry]) -> "Replicated":
        kept = [found for found in self.entries if found[0] < entries[0].index]
        return replace(self, entries=(*kept, *(plain(found) for found in entries)))


def plain(entry: LogEntry) -> tuple[int, int, bytes]:
    kept = entry_of(entry)
    return kept.index, kept.term, bytes(kept.body)


class Broker:
    """Storage of a process without its threads."""

    def __init__(self, disk: FaultDisk) -> None:
        self.store: Store = open_store(
            disk, Journal(disk, segment_bytes=64 << 10), LOGGER, broker_id=BROKER_ID, segment_bytes=2000
        )
        space = FreeSpace(lambda: None, reserve_bytes=0)
        self.writer = Writer(self.store, space, LOGGER, max_waiting=100, max_waiting_bytes=1 << 20)
        self.upkeep = Upkeep(self.store, self.writer, LOGGER, scrub_interval_s=1e9, on_damage=refuse, on_failure=exit)

    def write(self, change: Callable[[Round], object]) -> None:
        self.writer.submit(Change(change))
        self.run_writer()

    def run_writer(self) -> None:
        if self.writer.waiting:
            self.writer._write(self.writer._take())

    def run_upkeep(self) -> None:
        """Twice: what a snapshot has freed is unlinked when the record of the snapshot is durable."""
        for _ in range(2):
            self.upkeep.run_once()
            self.run_writer()

    @property
    def log(self) -> PartitionLog:
        (log,) = self.store.logs.values()
        return log

    def create(self) -> None:
        group = Group(
            self.store.new_group_id(),
            TOPIC_ID,
            0,
            ME.incarnation,
            Settings("orders"),
            HardState(),
            snapshot=SnapshotState(configuration=VOTERS),
        )
        self.write(lambda round_: self.store.open_log(round_, group))

    def persist(
        self,
        hard: HardState,
        entries: list[LogEntry],
        record: Snapshot | None = None,
        truncate_from: int | None = None,
    ) -> None:
        owed = Persist(GroupId(TOPIC_ID, 0), hard, truncate_from, record, tuple(entries))
        self.write(lambda round_: round_.persist(self.log, owed))

    def replicated(self) -> Replicated | None:
        """As a start finds it; None: there is none."""
        if not self.store.logs:
            return None
        log = self.log
        assert log.group.suspect is None, log.group.suspect
        stored, damage = stored_replica(self.store.disk, log)
        assert damage is None
        found = [(entry.index, entry.term, bytes(entry.body)) for entry in log.stream(log.group.first_index, 0)]
        assert stored.snapshot == read_snapshot(self.store.disk, log.group)
        return Replicated(replace(stored.hard, commit=0), log.group.first_index, tuple(found), stored.snapshot)


def refuse(_: PartitionLog, what: str) -> None:
    raise AssertionError(what)


Step = tuple[Callable[[Broker], None], Callable[[Replicated | None], Replicated | None]]


def script() -> Iterator[Step]:
    """What is done, and what it makes of the replica. Upkeep changes nothing that is seen."""
    vote = HardState(1, MemberId(2, 2), 0)
    upkeep: Step = (Broker.run_upkeep, lambda now: now)

    def append(hard: HardState, first: int, last: int, term: int, size: int = 300) -> Step:
        entries = [entry(index, term, size) for index in range(first, last + 1)]
        return (
            lambda broker: broker.persist(hard, entries),
            lambda now: replace(now or Replicated(), hard=hard).appended(entries),
        )

    def cut(hard: HardState, record: Snapshot) -> Step:
        """The log starts later when upkeep has stored the record."""

        def both(broker: Broker) -> None:
            broker.persist(hard, [], record)
            broker.run_upkeep()

        def cut_model(now: Replicated | None) -> Replicated:
            assert now is not None
            kept = tuple(found for found in now.entries if found[0] >= record.start_index)
            return replace(now, hard=hard, first_index=record.start_index, entries=kept, snapshot=record)

        return both, cut_model

    def install(hard: HardState, record: Snapshot, entries: list[LogEntry]) -> Step:
        return (
            lambda broker: broker.persist(hard, entries, record, truncate_from=0),
            lambda _: Replicated(hard, record.start_index, tuple(map(plain, entries)), record),
        )

    yield Broker.create, lambda _: Replicated()
    yield append(vote, 1, 4, 1)
    yield upkeep
    yield append(vote, 5, 12, 1)
    second = HardState(2, None, 0)
    yield append(second, 9, 14, 2)  # a conflicting suffix
    yield upkeep
    yield append(second, 15, 40, 2, size=2000)  # more than a segment of the journal holds
    yield cut(second, snapshot(10, 12, 2))
    yield append(second, 41, 42, 2)
    third = HardState(3, ME, 0)
    yield install(third, snapshot(60, 65, 3), [])
    yield append(third, 60, 70, 3)
    yield upkeep
    yield install(third, snapshot(100, 100, 3), [entry(100, 3), entry(101, 3)])
    yield append(third, 102, 130, 3, size=2000)
    yield upkeep
    yield lambda broker: broker.write(lambda round_: broker.store.drop_log(round_, broker.log)), lambda _: None
    yield upkeep


@dataclass(frozen=True)
class Outcome:
    """The state that is durable for sure, and the one that a step was to make of it."""

    now: Replicated | None
    following: Replicated | None

    def allows(self, found: Replicated | None) -> bool:
        """A step of more than one frame may be there in part: some first of its entries."""
        if found in (self.now, self.following):
            return True
        if found is None or self.now is None or self.following is None:
            return False
        kept = len([pair for pair in zip(self.now.entries, self.following.entries, strict=False) if pair[0] == pair[1]])
        in_part = replace(self.following, entries=self.following.entries[: len(found.entries)])
        return found == in_part and len(found.entries) >= kept


def run(disk: FaultDisk) -> Outcome:
    """Until it is done or power is lost."""
    now: Replicated | None = None
    following: Replicated | None = None
    try:
        broker = Broker(disk)
        for step, model in script():
            following = model(now)
            step(broker)
            now = following
    except PowerLoss:
        return Outcome(now, following)
    return Outcome(now, now)


def test_without_a_fault_the_script_does_what_the_model_says() -> None:
    disk = FaultDisk()
    broker = Broker(disk)
    now: Replicated | None = None
    for step, model in script():
        step(broker)
        now = model(now)
        assert broker.replicated() == now
    assert broker.store.journal.segment > 3
    assert disk.names("partitions") == []


def calls() -> list[str]:
    """What each call of the script is."""
    disk = FaultDisk()
    run(disk)
    return disk.log


def test_power_is_lost_at_some_calls() -> None:
    lose_power(range(1, len(calls()) + 1, 11), seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(4))
def test_power_is_lost_at_every_call(seed: int) -> None:
    lose_power(range(1, len(calls()) + 1), seed)


def lose_power(numbers: range, seed: int) -> None:
    """Also once more during the start after it; what comes back then does not change at later starts."""
    chance = random.Random(seed)
    for call in numbers:
        disk = FaultDisk(faults={call: Fault.POWER_LOSS})
        outcome = run(disk)
        left = disk.after_any_power_loss(chance)
        again = left.copy()
        again.faults = {chance.randint(1, 12): Fault.POWER_LOSS}
        try:
            Broker(again)
        except PowerLoss:
            again = again.after_any_power_loss(chance)
        else:
            again.after_kill()
        found = []
        for disk_left in (left, again):
            broker = Broker(disk_left)
            found.append(broker.replicated())
            assert outcome.allows(found[-1]), f"power was lost at call {call}: {disk.log[-1]}"
            broker.run_upkeep()
            assert Broker(disk_left).replicated() == found[-1]


def test_a_full_disk_at_some_calls_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fill_disk(monkeypatch, every=13)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_full_disk_at_every_call_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fill_disk(monkeypatch, every=1)


def fill_disk(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """The call is repeated: nothing is lost, and nothing is there twice. A failed sync is not: it ends a process."""
    monkeypatch.setattr("broker.storage.writer._FULL_DISK_PAUSE_S", 0)
    monkeypatch.setattr("broker.storage.upkeep._FULL_DISK_PAUSE_S", 0)
    disk = FaultDisk()
    Broker(disk)
    first = disk.calls + 1
    steps = list(script())[:-DROPPING_STEPS]
    writes = [(call, what) for call, what in enumerate(calls()[first:], first + 1) if not what.startswith("sync")]
    for call, what in writes[::every]:
        disk = FaultDisk(faults={call: Fault.NO_SPACE})
        broker = Broker(disk)
        now: Replicated | None = None
        for step, model in steps:
            step(broker)
            now = model(now)
        broker.run_upkeep()
        assert broker.replicated() == now, f"call {call}: {what}"
        disk.after_kill()
        assert Broker(disk).replicated() == now
