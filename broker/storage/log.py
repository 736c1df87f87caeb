"""The log of one partition: its entries in order, found by index, by offset and by time; every read is checked."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any
from uuid import UUID

import apsw

from broker.storage.database import Database
from broker.storage.entry import Entry, Tail, chained_crc

Row = tuple[int | bytes, ...]
Rows = list[tuple[Any, ...]]

_ROW_VALUES = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_MOST_ROWS = 64


class Corrupted(Exception):
    """What is stored is not what was written."""


@dataclass(frozen=True, slots=True)
class Group:
    """A partition as the file knows it. A topic that was deleted and made again is another group."""

    group_id: int
    topic_id: UUID
    partition_id: int
    topic: str
    term: int
    first_index: int
    start_offset: int
    start_bytes: int
    start_crc: int

    @property
    def start(self) -> Tail:
        return Tail(self.first_index, self.start_offset, 0, self.start_bytes, self.start_crc)


_GROUP_COLUMNS = "group_id, topic_id, partition_id, topic, term, first_index, start_offset, start_bytes, start_crc"


def load_groups(connection: apsw.Connection) -> list[Group]:
    rows = connection.execute(f"SELECT {_GROUP_COLUMNS} FROM partition_group WHERE dropped = 0").fetchall()  # noqa: S608
    return [_group(row) for row in rows]


def insert_group(connection: apsw.Connection, topic_id: UUID, partition_id: int, topic: str) -> Group:
    """The group that is there already, if an earlier attempt was given up before its commit was seen."""
    values = (topic_id.bytes, partition_id)
    connection.execute(
        "INSERT INTO partition_group (topic_id, partition_id, topic) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        (*values, topic),
    )
    rows = connection.execute(
        f"SELECT {_GROUP_COLUMNS} FROM partition_group WHERE topic_id = ? AND partition_id = ? AND dropped = 0",  # noqa: S608
        values,
    ).fetchall()
    return _group(rows[0])


def mark_dropped(connection: apsw.Connection, group_id: int) -> None:
    connection.execute("UPDATE partition_group SET dropped = 1 WHERE group_id = ?", (group_id,))


def dropped_groups(connection: apsw.Connection) -> list[int]:
    rows: Rows = connection.execute("SELECT group_id FROM partition_group WHERE dropped = 1").fetchall()
    return [group_id for (group_id,) in rows]


def delete_slice(connection: apsw.Connection, group_id: int, max_bytes: int) -> bool:
    """Deletes the first entries of a dropped group; True when nothing of it is left."""
    first = connection.execute(
        "SELECT entry_index, end_bytes FROM entry WHERE group_id = ? ORDER BY entry_index LIMIT 1", (group_id,)
    ).fetchone()
    if first is None:
        connection.execute("DELETE FROM partition_group WHERE group_id = ? AND dropped = 1", (group_id,))
        return True
    connection.execute(
        "DELETE FROM entry WHERE group_id = ? AND entry_index IN (SELECT entry_index FROM entry"
        " WHERE group_id = ? AND entry_index >= ? ORDER BY entry_index LIMIT 1000) AND end_bytes <= ?",
        (group_id, group_id, first[0], first[1] + max_bytes),
    )
    return False


def _group(row: tuple[Any, ...]) -> Group:
    group_id, topic_id, *rest = row
    return Group(group_id, UUID(bytes=topic_id), *rest)


def row_of(group: Group, entry: Entry, tail: Tail, mark_count: int) -> Row:
    """`tail` is the one after the entry."""
    return (
        group.group_id,
        entry.index,
        entry.term,
        int(entry.kind),
        entry.base_offset,
        entry.count,
        entry.append_time,
        tail.end_bytes,
        tail.crc,
        mark_count,
        entry.marks,
        entry.batch,
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


class Log:
    """The tail is replaced by the writing thread only, after its commit; everybody else reads it."""

    def __init__(self, database: Database, group: Group) -> None:
        self._database = database
        self.group = group
        self.tail = group.start

    def load(self, check_entries: int, check_bytes: int) -> None:
        """Finds the end and checks the chain of the last entries; the others are checked when they are read."""
        group_id = self.group.group_id
        with self._reading() as connection:
            last = connection.execute(
                "SELECT entry_index, base_offset + count, append_time, end_bytes, crc FROM entry"
                " WHERE group_id = ? ORDER BY entry_index DESC LIMIT 1",
                (group_id,),
            ).fetchone()
        if last is None:
            return
        self.tail = Tail(last[0] + 1, *last[1:])
        checked_bytes = 0
        for index in range(self.tail.next_index - 1, self.group.first_index - 1, -1)[:check_entries]:
            checked_bytes += self.at_index(index).size_bytes
            if checked_bytes >= check_bytes:
                break

    def at_index(self, index: int) -> Entry:
        with self._reading() as connection:
            return self._checked(connection, index)

    def at_offset(self, offset: int) -> Entry:
        """The entry that holds the message; the offset lies between the start and the end."""
        with self._reading() as connection:
            found = connection.execute(
                "SELECT entry_index FROM entry INDEXED BY entry_by_offset"
                " WHERE group_id = ? AND base_offset <= ? AND count > 0 ORDER BY base_offset DESC LIMIT 1",
                (self.group.group_id, offset),
            ).fetchone()
            if found is None:
                raise Corrupted(f"no entry holds offset {offset}")
            entry = self._checked(connection, found[0])
        if not entry.base_offset <= offset < entry.end_offset:
            raise Corrupted(f"entry {entry.index} does not hold offset {offset}")
        return entry

    def offset_at(self, timestamp: int) -> int:
        """The first offset appended at or after `timestamp`; the end when there is none."""
        tail = self.tail
        low, high, offset = self.group.first_index, tail.next_index, tail.end_offset
        with self._reading() as connection:
            # Append times never decrease along the log, so no index on them is needed.
            while low < high:
                middle = (low + high) // 2
                row = connection.execute(
                    "SELECT append_time, base_offset FROM entry WHERE group_id = ? AND entry_index = ?",
                    (self.group.group_id, middle),
                ).fetchone()
                if row is None:
                    raise Corrupted(f"entry {middle} is missing")
                if row[0] >= timestamp:
                    high, offset = middle, row[1]
                else:
                    low = middle + 1
        return offset

    def recent_marks(self, limit: int) -> list[tuple[int, bytes]]:
        """Base offset and marks of the last entries that have any, newest first, until `limit` marks are found."""
        found: list[tuple[int, bytes]] = []
        before = self.tail.end_offset
        with self._reading() as connection:
            while limit > 0:
                rows: Rows = connection.execute(
                    "SELECT base_offset, mark_count, marks FROM entry INDEXED BY entry_by_offset"
                    " WHERE group_id = ? AND base_offset < ? AND count > 0 AND mark_count > 0"
                    " ORDER BY base_offset DESC LIMIT 1000",
                    (self.group.group_id, before),
                ).fetchall()
                if not rows:
                    break
                for base_offset, count, marks in rows:
                    if limit > 0:
                        found.append((base_offset, marks))
                    limit -= count
                before = rows[-1][0]
        return found

    def _checked(self, connection: apsw.Connection, index: int) -> Entry:
        group_id = self.group.group_id
        row = connection.execute(
            "SELECT entry_index, term, kind, base_offset, count, append_time, marks, batch, crc,"
            " (SELECT crc FROM entry WHERE group_id = ? AND entry_index = ?)"
            " FROM entry WHERE group_id = ? AND entry_index = ?",
            (group_id, index - 1, group_id, index),
        ).fetchone()
        if row is None:
            raise Corrupted(f"entry {index} is missing")
        *fields, crc, previous = row
        if index == self.group.first_index:
            previous = self.group.start_crc
        try:
            entry = Entry(*fields)
            if previous is None or chained_crc(previous, entry) != crc:
                raise Corrupted(f"entry {index} does not match its checksum")
        except (TypeError, ValueError, struct.error) as error:
            raise Corrupted(f"entry {index} is not an entry: {error}") from error
        return entry

    @contextmanager
    def _reading(self) -> Iterator[apsw.Connection]:
        try:
            with self._database.reading() as connection:
                yield connection
        except (apsw.CorruptError, apsw.IOError) as error:
            raise Corrupted(f"the file cannot be read: {error}") from error
