"""A journal with a small state behind it, as the tests drive it: what it must give back is known."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from broker.storage.disk import Disk
from broker.storage.entry import Entry
from broker.storage.journal import Journal
from broker.storage.journal_frame import Frame
from broker.storage.journal_recovery import Recovery
from broker.storage.record import Record, RecordKind, entry_record, parse, value_record

SEGMENT_BYTES = 64 << 10


def entry(group: int, index: int, body: bytes, dedup_records: bytes = b"") -> Record:
    made = Entry(index, 1, 1, index, 1, 0, b"", dedup_records, body, len(body), crc32c(body))
    return entry_record(group, made, chain=index)


def state(group: int, value: bytes) -> Record:
    return value_record(RecordKind.GROUP, group, value)


def plain(records: Sequence[Record]) -> list[tuple[int, int, bytes, bytes]]:
    return [(int(r.kind), r.group, bytes(r.header), bytes(r.body)) for r in records]


@dataclass
class Store:
    """Groups with a value, and the last index of entries: as the engine holds them."""

    journal: Journal
    values: dict[int, bytes] = field(default_factory=dict)
    entries: dict[tuple[int, int], bytes] = field(default_factory=dict)  # by group and index, not synced elsewhere
    places: dict[tuple[int, int], int] = field(default_factory=dict)  # the segment that holds the entry
    damage: str | None = None

    def head(self) -> list[Record]:
        return [state(group, value) for group, value in sorted(self.values.items())]

    def replay_from(self) -> int | None:
        return min(self.places.values(), default=None)

    def take(self, frame: Frame) -> None:
        for record in frame.records:
            if record.kind is RecordKind.GROUP:
                self.values[record.group] = bytes(record.body)
            elif record.kind is RecordKind.ENTRY:
                parsed = parse(record.header, 0)
                if crc32c(record.body) != parsed.body_crc:
                    self.damage = "a body that is copied does not match"
                    continue
                self.entries[record.group, parsed.entry_index] = bytes(record.body)
                self.places[record.group, parsed.entry_index] = frame.segment

    def append(self, records: Sequence[Record]) -> int:
        sequence = self.journal.append(records)
        self.take(Frame(sequence, self.journal.segment, False, list(records)))
        return sequence

    def sync(self) -> None:
        """As if the partition files were synced past everything."""
        self.entries.clear()
        self.places.clear()
        self.journal.release(self.journal.segment)


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
    store.journal.begin(recovery.starts + 1, store.head, replay_from=store.replay_from)
    store.journal.prepare()
    return store


def bodies(count: int, size: int) -> Iterator[bytes]:
    for number in range(count):
        yield bytes([number % 251]) * size
