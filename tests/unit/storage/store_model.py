"""What a store must hold, as plain values: every change is a step, and a crash leaves some first steps of a round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from broker.raft.configuration import MemberId
from broker.raft.entry import LogEntry
from broker.raft.snapshot import Snapshot
from broker.storage.entry import Entry, Tail, entry_of, log_entry_of
from broker.storage.group import Settings, TermRuns
from broker.storage.replay import stored_replica
from broker.storage.store import ASIDE, Store
from tests.fault_disk import FaultDisk
from tests.logs import plain_all

Name = tuple[UUID, int]
_BEGIN = Tail(1, 0, 0, 0, 0)
_NO_SNAPSHOT = Snapshot()
_OWN_VALUES = {"last_group", "incarnation", "broker_id"}  # the store's own


@dataclass(frozen=True)
class ModelGroup:
    """`entries` also has those that retention has passed, since the log began or began anew."""

    settings: Settings
    incarnation: int
    term: int = 0
    vote: MemberId | None = None
    commit: int = 0
    stored_commit: int = 0  # as last seen on the disk
    begin: Tail = _BEGIN
    begin_term: int = 0
    entries: tuple[Entry, ...] = ()
    tails: tuple[Tail, ...] = ()  # after each of them
    snapshot: Snapshot = _NO_SNAPSHOT  # as last seen on the disk
    requested: tuple[Snapshot, ...] = ()

    @property
    def next_index(self) -> int:
        return self.begin.next_index + len(self.entries)

    @property
    def first_index(self) -> int:
        return self.snapshot.start_index

    @property
    def last_requested_index(self) -> int:
        return max(self.snapshot.index, self.requested[-1].index if self.requested else 0)

    @property
    def last_requested_start(self) -> int:
        return max(self.snapshot.start_index, self.requested[-1].start_index if self.requested else 0)

    def tail_before(self, index: int) -> Tail:
        number = min(index - self.begin.next_index, len(self.entries))
        return self.tails[number - 1] if number > 0 else self.begin

    def term_before(self, index: int) -> int:
        return (
            self.entries[index - self.begin.next_index - 1].term if index > self.begin.next_index else self.begin_term
        )

    def since(self, index: int) -> tuple[Entry, ...]:
        return self.entries[max(0, index - self.begin.next_index) :]

    def with_entry(self, entry: LogEntry) -> "ModelGroup":
        kept = entry.index - self.begin.next_index
        stored = entry_of(entry)
        stored = replace(stored, body=bytes(stored.body))
        tail = self.tail_before(entry.index).after(stored)
        return replace(self, entries=(*self.entries[:kept], stored), tails=(*self.tails[:kept], tail))

    def runs(self, first: int, last: int) -> TermRuns:
        found: list[tuple[int, int]] = []
        for entry in self.since(first):
            if entry.index <= last and (not found or found[-1][1] != entry.term):
                found.append((entry.index, entry.term))
        return tuple(found)


@dataclass(frozen=True)
class Model:
    groups: dict[Name, ModelGroup] = field(default_factory=dict)
    former: frozenset[tuple[bytes, int]] = frozenset()
    values: dict[str, str] = field(default_factory=dict)
    aside: dict[str, dict[str, bytes]] = field(default_factory=dict)  # by name, what was synced of each log file

    def with_group(self, name: Name, group: ModelGroup) -> "Model":
        return replace(self, groups={**self.groups, name: group})

    def without(self, name: Name) -> "Model":
        groups = {held: group for held, group in self.groups.items() if held != name}
        return replace(self, groups=groups, former=self.former | {(name[0].bytes, name[1])})


Step = Callable[[Model], Model]


def after(model: Model, steps: Sequence[Step]) -> Model:
    for step in steps:
        model = step(model)
    return model


class Mismatch(AssertionError):
    """The store does not hold what it must."""


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Mismatch(what)


def check(store: Store, model: Model) -> Model:
    """Everything the store holds against the model. With what may lag as it is found: snapshots, commit indexes.

    Raises Mismatch; Corrupted when something is not readable.
    """
    values = {name: value for name, value in store.values.items() if name not in _OWN_VALUES}
    expect(values == model.values, "values")
    expect(store.former.keys() == model.former, "the partitions that were held are others")
    logs = {(log.group.topic_id, log.group.partition_id): log for log in store.logs.values()}
    expect(len(logs) == len(store.logs), "two replicas of one partition")
    expect(logs.keys() == model.groups.keys(), "other groups")
    for name in logs:
        model = model.with_group(name, _checked(store, model.groups[name], name))
    return model


def _checked(store: Store, wanted: ModelGroup, name: Name) -> ModelGroup:
    log = next(log for log in store.logs.values() if (log.group.topic_id, log.group.partition_id) == name)
    group = log.group
    expect(group.suspect is None and group.damage is None, f"suspect: {group.suspect or group.damage}")
    expect((group.settings, group.incarnation) == (wanted.settings, wanted.incarnation), "settings or incarnation")
    expect((group.hard.term, group.hard.vote) == (wanted.term, wanted.vote), "term or vote")
    expect(wanted.stored_commit <= group.hard.commit <= wanted.commit, "the commit index")
    stored, damage = stored_replica(store.disk, log)
    expect(damage is None, f"damage: {damage}")
    snapshot = stored.snapshot
    expect(
        snapshot == wanted.snapshot or snapshot in wanted.requested,
        "the snapshot",
    )
    start = wanted.tail_before(group.first_index)
    expect((group.start_bytes, group.start_crc) == (start.end_bytes, start.crc), "the start of the log")
    kept_from = min(group.first_index, snapshot.index + 1)
    found = plain_all(list(log.stream(kept_from, 0)))
    entries = list(wanted.since(kept_from))
    if found != entries:
        pairs = [[(entry.index, entry.term) for entry in some] for some in (found, entries)]
        raise Mismatch(f"entries {pairs[0]}, not {pairs[1]}")
    end = wanted.tail_before(wanted.next_index)
    if wanted.next_index == group.first_index:  # an empty log: its time is not kept
        end = replace(end, append_time=log.tail.append_time)
    expect(log.tail == end, "tail")
    if entries and entries[-1].index >= group.first_index:
        first, last = group.first_index, entries[-1].index
        read = plain_all(log.from_index(first, 1 << 20))
        expect(read == list(wanted.since(first))[: len(read)], "a read from the first index")
        expect(log.terms(last) == wanted.runs(first, last), "terms")
    anchor = stored.anchor
    assert anchor is not None
    replayed = tuple(stored.entries)
    expected = [log_entry_of(entry) for entry in wanted.since(anchor.index + 1)]
    bodiless = [replace(entry, body=b"") if isinstance(entry.body, bytes) else entry for entry in expected]
    found_bodiless = [replace(entry, body=b"") if isinstance(entry.body, bytes) else entry for entry in replayed]
    expect(found_bodiless == bodiless, "entries for the core")
    newer = wanted.requested
    if snapshot in newer:
        newer = newer[newer.index(snapshot) + 1 :]
    return replace(wanted, stored_commit=group.hard.commit, snapshot=snapshot, requested=newer)


def check_aside(disk: FaultDisk, model: Model) -> None:
    for name, files in model.aside.items():
        for file, data in files.items():
            path = f"{ASIDE}/{name}/{file}"
            expect(file in disk.names(f"{ASIDE}/{name}"), f"{path} is not kept aside")
            expect(disk.contents(path).startswith(data), f"{path} is not what it was")


def check_no_strays(store: Store, disk: FaultDisk) -> None:
    """Nothing is left of groups that were dropped."""
    folders = {int(name) for name in disk.names("partitions")}
    expect(folders <= store.logs.keys(), "folders of groups that are not held")
