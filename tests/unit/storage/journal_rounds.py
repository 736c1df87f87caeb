"""A journal with a small state behind it, as the tests drive it: what it must give back is known."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from broker.storage.disk import Disk
from broker.storage.entry import Entry
from broker.storage.journal import Journal
from broker.storage.journal_frame import Frame
from broker.storage.journal_recovery import Recovery
from broker.storage.record import Record, RecordKind, entry_record, parse, value_record

SEGMENT_BYTES = 64 << 10
SMALL_SEGMENT_BYTES = 16 << 10


def entry(group: int, index: int, body: bytes, dedup_records: bytes = b"") -> Record:
    made = Entry(index, 1, 1, index, 1, 0, b"", dedup_records, body, len(body), crc32c(body))
    return entry_record(group, made, chain=index)


def state(group: int, value: bytes) -> Record:
    return value_record(RecordKind.GROUP, group, value)


def plain(records: Sequence[Record]) -> list[tuple[int, int, bytes, bytes]]:
    return [(int(r.kind), r.group, bytes(r.header), bytes(r.body)) for r in records]


@dataclass
class Held:
    """Values of groups, and entries by group and index: what the journal must give back."""

    values: dict[int, bytes] = field(default_factory=dict)
    entries: dict[tuple[int, int], bytes] = field(default_factory=dict)  # not synced to partition files
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)  # synced ones too

    def copy(self) -> "Held":
        return Held(dict(self.values), dict(self.entries), dict(self.acknowledged))

    def add(self, records: Sequence[Record]) -> None:
        for record in records:
            if record.kind is RecordKind.GROUP:
                self.values[record.group] = bytes(record.body)
            elif record.kind is RecordKind.ENTRY:
                key = (record.group, parse(record.header, 0).entry_index)
                self.entries[key] = self.acknowledged[key] = bytes(record.body)

    def is_given_back_by(self, found: "Store") -> bool:
        """What was synced elsewhere may come again, but nothing that was never written."""
        return (
            found.held.values == self.values
            and self.entries.items() <= found.held.entries.items()
            and found.held.entries.items() <= self.acknowledged.items()
        )


@dataclass
class Store:
    """What the engine does with a journal."""

    journal: Journal
    held: Held = field(default_factory=Held)
    places: dict[tuple[int, int], int] = field(default_factory=dict)  # the segment that holds an entry
    in_flight: Sequence[Record] = ()
    damage: str | None = None

    def head(self) -> list[Record]:
        return [state(group, value) for group, value in sorted(self.held.values.items())]

    def replay_from(self) -> int | None:
        return min(self.places.values(), default=None)

    def take(self, frame: Frame) -> None:
        for record in frame.records:
            if record.kind is RecordKind.ENTRY:
                parsed = parse(record.header, 0)
                if crc32c(record.body) != parsed.body_crc:
                    self.damage = "a body that is copied does not match"
                self.places[record.group, parsed.entry_index] = frame.segment
        self.held.add(frame.records)

    def append(self, records: Sequence[Record]) -> int:
        self.in_flight = records
        sequence = self.journal.append(records)
        self.take(Frame(sequence, self.journal.segment, False, list(records)))
        self.in_flight = ()
        return sequence

    def sync(self) -> None:
        """As if the partition files were synced past everything."""
        self.held.entries.clear()
        self.places.clear()
        self.journal.release(self.journal.segment)

    def outcomes(self) -> list[Held]:
        """What a start may find if power was lost now: the call in flight took effect or not."""
        with_in_flight = self.held.copy()
        with_in_flight.add(self.in_flight)
        return [self.held, with_in_flight]


def recovered(disk: Disk, segment_bytes: int = SEGMENT_BYTES, **options: int) -> tuple[Store, Recovery]:
    """Not begun yet."""
    store = Store(Journal(disk, segment_bytes=segment_bytes, **options))
    recovery = store.journal.recover()
    for frame in recovery.frames:
        store.take(frame)
    store.damage = recovery.damage or store.damage
    return store, recovery


def started(disk: Disk, segment_bytes: int = SEGMENT_BYTES, **options: int) -> Store:
    store, recovery = recovered(disk, segment_bytes, **options)
    begin(store, recovery)
    return store


def begin(store: Store, recovery: Recovery) -> None:
    store.journal.begin(recovery.starts + 1, store.head, replay_from=store.replay_from)
    store.journal.prepare()


def small_journal(disk: Disk, rounds: int = 30, sync_every: int = 4, store: Store | None = None) -> Store:
    """Of segments of four pages, in which a frame is one page: every few rounds a segment ends."""
    made = store or started(disk, SMALL_SEGMENT_BYTES)
    for number in range(1, rounds + 1):
        made.append(small_round(number))
        if number % sync_every == 0:
            made.sync()
        made.journal.prepare()
    return made


def small_round(number: int, body: bytes = b"body") -> list[Record]:
    records = [entry(number % 3, number, body * (number * 7 % 23), b"dedup" * (number % 2))]
    if number % 3 == 0:
        records.append(state(number % 5, b"value %d" % number))
    return records
