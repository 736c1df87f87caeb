"""The log of one partition: its entries in order, found by index, by offset and by time; every read is checked."""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

import apsw

from broker.raft.entry import Kind
from broker.storage.database import Database
from broker.storage.entry import Entry, Tail, chained_crc
from broker.storage.groups import Corrupted, Group, Rows

T = TypeVar("T")
Row = tuple[int | bytes | memoryview, ...]
Fields = tuple[int, int, int, int]  # term, append time, base offset and end_bytes of an entry

_ROW_VALUES = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_MOST_ROWS = 64
_STREAMED_ROWS = 500
_COLUMNS = "entry_index, term, kind, base_offset, count, append_time, head, marks"
_MESSAGES, _CONFIGURATION = int(Kind.MESSAGES), int(Kind.CONFIGURATION)


def row_of(group_id: int, entry: Entry, tail: Tail) -> Row:
    """`tail` is the one after the entry."""
    return (
        group_id,
        entry.index,
        entry.term,
        entry.kind,
        entry.base_offset,
        entry.count,
        entry.append_time,
        tail.end_bytes,
        tail.crc,
        entry.head,
        entry.marks,
        entry.body,
    )


def insert_rows(connection: apsw.Connection, rows: list[Row]) -> None:
    """Many rows in one statement: between statements the thread would have to fight for the interpreter each time.

    Sizes are powers of two, so that a handful of prepared statements is enough.
    """
    position = 0
    while position < len(rows):
        size = min(_MOST_ROWS, 1 << ((len(rows) - position).bit_length() - 1))
        values = ", ".join([_ROW_VALUES] * size)
        chunk = rows[position : position + size]
        connection.execute(f"INSERT INTO entry VALUES {values}", list(chain.from_iterable(chunk)))  # noqa: S608
        position += size


def tail_at(connection: apsw.Connection, group: Group, index: int) -> Tail:
    """The tail of a log that ends with this entry."""
    if index < group.first_index:
        return group.start
    row = connection.execute(
        "SELECT base_offset + count, append_time, end_bytes, crc FROM entry WHERE group_id = ? AND entry_index = ?",
        (group.group_id, index),
    ).fetchone()
    if row is None:
        raise Corrupted(f"entry {index} is missing")
    return Tail(index + 1, *row)


class Log:
    """`group` and `tail` are replaced by the writing thread only, after its commit; everybody else reads them."""

    def __init__(self, database: Database, group: Group) -> None:
        self._database = database
        self.group = group
        self.tail = group.start
        self.snapshot_index = 0  # how far the stored snapshot record goes
        self.unsaved_bytes = 0  # written since the commit index was last stored; the writing thread's own

    def load(self, check_entries: int, check_bytes: int) -> None:
        """Finds the end and checks the chain of the last entries; the others are checked when they are read."""
        group = self.group
        with self._reading() as connection:
            last = connection.execute(
                "SELECT entry_index FROM entry WHERE group_id = ? ORDER BY entry_index DESC LIMIT 1", (group.group_id,)
            ).fetchone()
            last_index = group.first_index - 1 if last is None else max(last[0], group.first_index - 1)
            self.tail = tail_at(connection, group, last_index)
        if group.hard.commit > last_index:
            raise Corrupted(f"entries up to {group.hard.commit} were committed, the log ends at {last_index}")
        checked_bytes = 0
        for index in range(last_index, group.first_index - 1, -1)[:check_entries]:
            checked_bytes += self.at_index(index).size_bytes
            if checked_bytes >= check_bytes:
                break

    def terms(self, last_index: int) -> tuple[tuple[int, int], ...]:
        """Runs (first index, term) from the start up to `last_index`. Terms never decrease, so halving finds them."""
        runs: list[tuple[int, int]] = []
        first = self.group.first_index
        while first <= last_index:
            term = self.fields(first)[0]
            runs.append((first, term))
            first = self._first(first, last_index + 1, _term_above(term))
        return tuple(runs)

    def stream(self, first_index: int, bodies_from: int) -> Iterator[Entry]:
        """Entries from `first_index` to the end, those of messages without their bodies before `bodies_from`."""
        expected = first_index
        while expected < self.tail.next_index:
            with self._reading() as connection:
                rows: Rows = connection.execute(
                    f"SELECT {_COLUMNS}, CASE WHEN kind = {_MESSAGES} AND entry_index < ? THEN x'' ELSE body END"  # noqa: S608
                    " FROM entry WHERE group_id = ? AND entry_index >= ? ORDER BY entry_index LIMIT ?",
                    (bodies_from, self.group.group_id, expected, _STREAMED_ROWS if expected < bodies_from else 1),
                ).fetchall()
            for row in rows:
                if row[0] != expected:
                    break
                yield _entry(row)
                expected += 1
            if not rows or rows[0][0] != expected - len(rows):
                raise Corrupted(f"entry {expected} is missing")

    def tail_at(self, index: int) -> Tail:
        return self._retried(lambda connection, group: tail_at(connection, group, index))

    def at_index(self, index: int) -> Entry:
        return self._retried(lambda connection, group: _checked(connection, group, index))

    def from_index(self, first_index: int, max_bytes: int) -> list[Entry]:
        """At least one and at most about `max_bytes`; none when they were cut."""

        def read(connection: apsw.Connection, group: Group) -> list[Entry]:
            if first_index < group.first_index:
                return []
            found: list[Entry] = []
            size = 0
            while first_index + len(found) < self.tail.next_index:
                entry = _checked(connection, group, first_index + len(found))
                size += entry.size_bytes
                if found and size > max_bytes:
                    break
                found.append(entry)
            return found

        return self._retried(read)

    def at_offset(self, offset: int) -> Entry | None:
        """The entry that holds the message; None when it was cut meanwhile."""

        def read(connection: apsw.Connection, group: Group) -> Entry | None:
            if offset < group.start_offset:
                return None
            entry = _checked(connection, group, _index_of(connection, group, offset))
            if not entry.base_offset <= offset < entry.end_offset:
                raise Corrupted(f"entry {entry.index} does not hold offset {offset}")
            return entry

        return self._retried(read)

    def from_offset(self, offset: int, last_index: int, max_bytes: int) -> list[Entry]:
        """Entries with messages, the first holds `offset`, none is after `last_index`; nothing when it was cut.

        At least one and at most about `max_bytes`.
        """

        def read(connection: apsw.Connection, group: Group) -> list[Entry]:
            if offset < group.start_offset:
                return []
            index = _index_of(connection, group, offset)
            found: list[Entry] = []
            size = 0
            for entry in _checked_run(connection, group, index, last_index):
                size += entry.size_bytes
                if found and size > max_bytes:
                    break
                if entry.count:
                    found.append(entry)
            if not found or not found[0].base_offset <= offset < found[0].end_offset:
                raise Corrupted(f"entry {index} does not hold offset {offset}")
            return found

        return self._retried(read)

    def place_of(self, offset: int) -> tuple[int, int] | None:
        """Of the entry that holds the message: bytes before it, and its append time; None when it was cut."""

        def read(connection: apsw.Connection, group: Group) -> tuple[int, int] | None:
            if offset < group.start_offset:
                return None
            index = _index_of(connection, group, offset)
            return tail_at(connection, group, index - 1).end_bytes, tail_at(connection, group, index).append_time

        return self._retried(read)

    def last_configuration(self) -> Entry | None:
        """The newest entry that changes members, unchecked; looks through all of them."""
        with self._reading() as connection:
            row = connection.execute(
                f"SELECT {_COLUMNS}, body FROM entry WHERE group_id = ? AND kind = {_CONFIGURATION}"  # noqa: S608
                " ORDER BY entry_index DESC LIMIT 1",
                (self.group.group_id,),
            ).fetchone()
        return None if row is None else _entry(row)

    def first_appended_since(self, timestamp: int, end: int) -> int:
        """The first entry before `end` appended at or after `timestamp`; `end` when there is none."""
        return self._first(self.group.first_index, end, lambda row: row[1] >= timestamp)

    def first_ending_beyond(self, end_bytes: int, end: int) -> int:
        """The first entry before `end` that lies beyond that many bytes from the log's beginning; else `end`."""
        return self._first(self.group.first_index, end, lambda row: row[3] > end_bytes)

    def fields(self, index: int) -> Fields:
        def read(connection: apsw.Connection, group: Group) -> Fields:
            row: Fields | None = connection.execute(
                "SELECT term, append_time, base_offset, end_bytes FROM entry WHERE group_id = ? AND entry_index = ?",
                (group.group_id, index),
            ).fetchone()
            if row is None:
                raise Corrupted(f"entry {index} is missing")
            return row

        return self._retried(read)

    def _first(self, low: int, high: int, wanted: Callable[[Fields], bool]) -> int:
        while low < high:
            middle = (low + high) // 2
            if wanted(self.fields(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    def _retried(self, read: Callable[[apsw.Connection, Group], T]) -> T:
        """What is missing because the log was cut during the read is not damage."""
        while True:
            group = self.group
            try:
                with self._reading() as connection:
                    return read(connection, group)
            except Corrupted:
                if self.group is group:
                    raise

    @contextmanager
    def _reading(self) -> Iterator[apsw.Connection]:
        try:
            with self._database.reading() as connection:
                yield connection
        except (apsw.CorruptError, apsw.IOError) as error:
            raise Corrupted(f"the file cannot be read: {error}") from error


def _index_of(connection: apsw.Connection, group: Group, offset: int) -> int:
    """The entry that should hold the message."""
    found = connection.execute(
        "SELECT entry_index FROM entry INDEXED BY entry_by_offset"
        " WHERE group_id = ? AND base_offset <= ? AND count > 0 ORDER BY base_offset DESC LIMIT 1",
        (group.group_id, offset),
    ).fetchone()
    if found is None:
        raise Corrupted(f"no entry holds offset {offset}")
    index: int = found[0]
    return index


def _checked(connection: apsw.Connection, group: Group, index: int) -> Entry:
    for entry in _checked_run(connection, group, index, index):
        return entry
    raise Corrupted(f"entry {index} is missing")


def _checked_run(connection: apsw.Connection, group: Group, first: int, last: int) -> Iterator[Entry]:
    """Entries one after the other, each checked against the one before it; the statement ends with the iteration."""
    crc: int | None = group.start_crc
    if first > group.first_index:
        before = connection.execute(
            "SELECT crc FROM entry WHERE group_id = ? AND entry_index = ?", (group.group_id, first - 1)
        ).fetchone()
        crc = None if before is None else before[0]
    expected = first
    rows = connection.execute(
        f"SELECT {_COLUMNS}, body, crc FROM entry WHERE group_id = ? AND entry_index BETWEEN ? AND ?"  # noqa: S608
        " ORDER BY entry_index",
        (group.group_id, first, last),
    )
    try:
        for *fields, stored_crc in rows:
            try:
                entry = _entry(fields)
                crc = None if crc is None or entry.index != expected else chained_crc(crc, entry)
            except (TypeError, ValueError, struct.error) as error:
                raise Corrupted(f"entry {expected} is not an entry: {error}") from error
            if crc is None:
                raise Corrupted(f"entry {expected} or the one before it is missing")
            if crc != stored_crc:
                raise Corrupted(f"entry {expected} does not match its checksum")
            yield entry
            expected += 1
    finally:
        rows.close()


def _term_above(term: int) -> Callable[[Fields], bool]:
    return lambda fields: fields[0] > term


def _entry(row: Any) -> Entry:
    return Entry(*row)
