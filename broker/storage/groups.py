"""The partitions in the file: one row each with its Raft state, and beside it the snapshot record.

Every row carries a checksum, and the file one over all rows: a term or a vote that changed by itself, or a row that
vanished, is noticed when the file is opened.
"""

import struct
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import apsw
import msgpack
from crc32c import crc32c

from broker.raft.configuration import GroupConfiguration
from broker.raft.snapshot import HardState, Snapshot
from broker.storage.database import set_meta
from broker.storage.entry import Tail
from broker.storage.records import BadRecord, member_bytes, member_of, snapshot_bytes, snapshot_of

Rows = list[tuple[Any, ...]]

_COLUMNS = (
    "group_id, topic_id, partition_id, topic, incarnation, retention_ms, retention_bytes,"
    " term, vote, commit_index, first_index, start_offset, start_bytes, start_crc"
)
_REGISTER = "groups"
_NO_END = 1 << 62


class Corrupted(Exception):
    """What is stored is not what was written."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the catalog says about a partition; the same on all replicas."""

    topic: str
    retention_ms: int | None = None
    retention_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A partition as the file knows it. A topic that was deleted and made again is another group."""

    group_id: int
    topic_id: UUID
    partition_id: int
    incarnation: int  # of this replica: its name as a member
    settings: Settings
    hard: HardState
    first_index: int = 1
    start_offset: int = 0
    start_bytes: int = 0  # end_bytes of the entry before the first
    start_crc: int = 0  # crc of the entry before the first

    @property
    def start(self) -> Tail:
        return Tail(self.first_index, self.start_offset, 0, self.start_bytes, self.start_crc)

    def row(self) -> tuple[int | str | bytes | None, ...]:
        return (
            self.group_id,
            self.topic_id.bytes,
            self.partition_id,
            self.settings.topic,
            f"{self.incarnation:016x}",
            self.settings.retention_ms,
            self.settings.retention_bytes,
            self.hard.term,
            member_bytes(self.hard.vote),
            self.hard.commit,
            self.first_index,
            self.start_offset,
            self.start_bytes,
            self.start_crc,
        )


@dataclass(frozen=True, slots=True)
class Damaged:
    """A row whose state cannot be trusted; its name can, the register vouches for it."""

    group_id: int
    topic_id: UUID
    partition_id: int
    settings: Settings
    reason: str


def load(connection: apsw.Connection) -> list[Group | Damaged]:
    """Raises Corrupted when rows are missing or swapped: then nothing in the file can be relied on."""
    rows: Rows = connection.execute(f"SELECT {_COLUMNS}, crc FROM partition_group WHERE dropped = 0").fetchall()  # noqa: S608
    register = connection.execute("SELECT value FROM meta WHERE name = ?", (_REGISTER,)).fetchone()
    try:
        found = 0
        for row in rows:
            found ^= _name_crc(*row[:3])
        if int(register[0] if register else 0) != found:
            raise Corrupted("the partitions are not those that were stored")
        return [_read(row) for row in rows]
    except (TypeError, ValueError, struct.error) as error:
        raise Corrupted(f"the partitions are not readable: {error}") from error


def _read(row: tuple[Any, ...]) -> Group | Damaged:
    *fields, crc = row
    group_id, topic_id, partition_id, topic, incarnation, retention_ms, retention_bytes, *state = fields
    if _row_crc(tuple(fields)) != crc:
        return Damaged(
            group_id,
            UUID(bytes=topic_id),
            partition_id,
            Settings(str(topic), None, None),
            "term, vote or start do not match their checksum",
        )
    term, vote, commit, *start = state
    return Group(
        group_id,
        UUID(bytes=topic_id),
        partition_id,
        int(incarnation, 16),
        Settings(topic, retention_ms, retention_bytes),
        HardState(term, member_of(vote), commit),
        *start,
    )


def insert(
    connection: apsw.Connection,
    topic_id: UUID,
    partition_id: int,
    settings: Settings,
    incarnation: int,
    configuration: GroupConfiguration,
) -> Group:
    """A new replica without entries. The one that is there already, if its making was given up before it was seen."""
    name = (topic_id.bytes, partition_id)
    held = connection.execute(
        f"SELECT {_COLUMNS}, crc FROM partition_group WHERE topic_id = ? AND partition_id = ? AND dropped = 0",  # noqa: S608
        name,
    ).fetchone()
    if held is not None:
        found = _read(held)
        if isinstance(found, Damaged):
            raise Corrupted(found.reason)
        return found
    group_id = _free_id(connection)
    group = Group(group_id, topic_id, partition_id, incarnation, settings, HardState())
    _insert_row(connection, group)
    store_snapshot(connection, group_id, Snapshot(configuration=configuration))
    return group


def insert_again(connection: apsw.Connection, group: Group) -> Group:
    """The same replica with an empty log: what it had is deleted in slices, like a dropped partition."""
    _mark_dropped(connection, group.group_id, *_name(group))
    again = replace(group, group_id=_free_id(connection), start_bytes=0, start_crc=0)
    _insert_row(connection, again)
    return again


def _free_id(connection: apsw.Connection) -> int:
    """Never used before: cached entries are known by it."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'last_group'").fetchone()
    group_id = 1 + int(row[0] if row else 0)
    set_meta(connection, "last_group", str(group_id))
    return group_id


def _insert_row(connection: apsw.Connection, group: Group) -> None:
    row = group.row()
    marks = ", ".join("?" * (len(row) + 1))
    connection.execute(f"INSERT INTO partition_group ({_COLUMNS}, crc) VALUES ({marks})", (*row, _row_crc(row)))  # noqa: S608
    _turn_register(connection, _name_crc(group.group_id, *_name(group)))


def update(connection: apsw.Connection, group: Group) -> None:
    row = group.row()
    connection.execute(
        "UPDATE partition_group SET topic = ?, incarnation = ?, retention_ms = ?, retention_bytes = ?, term = ?,"
        " vote = ?, commit_index = ?, first_index = ?, start_offset = ?, start_bytes = ?, start_crc = ?, crc = ?"
        " WHERE group_id = ?",
        (*row[3:], _row_crc(row), group.group_id),
    )


def store_snapshot(connection: apsw.Connection, group_id: int, snapshot: Snapshot) -> None:
    record = snapshot_bytes(snapshot)
    connection.execute(
        "INSERT OR REPLACE INTO snapshot (group_id, crc, record) VALUES (?, ?, ?)",
        (group_id, crc32c(record, group_id & 0xFFFFFFFF), record),
    )


def load_snapshot(connection: apsw.Connection, group: Group) -> Snapshot:
    row = connection.execute("SELECT crc, record FROM snapshot WHERE group_id = ?", (group.group_id,)).fetchone()
    if row is None or crc32c(row[1], group.group_id & 0xFFFFFFFF) != row[0]:
        raise Corrupted("the snapshot record does not match its checksum")
    try:
        snapshot = snapshot_of(row[1])
    except BadRecord as error:
        raise Corrupted(str(error)) from error
    if (snapshot.start_index, snapshot.start_offset) != (group.first_index, group.start_offset):
        raise Corrupted("the snapshot record starts elsewhere than the log")
    return snapshot


def drop(connection: apsw.Connection, group_id: int, topic_id: UUID, partition_id: int) -> None:
    """Not served from here on. Remembered: should the partition come back, it comes back as another member."""
    _mark_dropped(connection, group_id, topic_id.bytes, partition_id)
    connection.execute("INSERT OR IGNORE INTO former_group VALUES (?, ?)", (topic_id.bytes, partition_id))


def was_held(connection: apsw.Connection, topic_id: UUID, partition_id: int) -> bool:
    found = connection.execute(
        "SELECT 1 FROM former_group WHERE topic_id = ? AND partition_id = ?", (topic_id.bytes, partition_id)
    ).fetchone()
    return found is not None


def _mark_dropped(connection: apsw.Connection, group_id: int, topic_id: bytes, partition_id: int) -> None:
    connection.execute("UPDATE partition_group SET dropped = 1 WHERE group_id = ? AND dropped = 0", (group_id,))
    if connection.changes():
        _turn_register(connection, _name_crc(group_id, topic_id, partition_id))
    connection.execute("DELETE FROM snapshot WHERE group_id = ?", (group_id,))


def dropped(connection: apsw.Connection) -> list[int]:
    rows: Rows = connection.execute("SELECT group_id FROM partition_group WHERE dropped = 1").fetchall()
    return [group_id for (group_id,) in rows]


def has_rows_below(connection: apsw.Connection, group: Group) -> bool:
    """Whether entries that were cut are still to be deleted."""
    found = connection.execute(
        "SELECT 1 FROM entry WHERE group_id = ? AND entry_index < ? LIMIT 1", (group.group_id, group.first_index)
    ).fetchone()
    return found is not None


def delete_slice(connection: apsw.Connection, group_id: int, before: int | None, max_bytes: int) -> bool:
    """Deletes the first entries, those below `before` or all; True when none of them is left."""
    end = _NO_END if before is None else before
    first = connection.execute(
        "SELECT entry_index, end_bytes FROM entry WHERE group_id = ? AND entry_index < ? ORDER BY entry_index LIMIT 1",
        (group_id, end),
    ).fetchone()
    if first is None:
        if before is None:
            connection.execute("DELETE FROM partition_group WHERE group_id = ? AND dropped = 1", (group_id,))
        return True
    connection.execute(
        "DELETE FROM entry WHERE group_id = ? AND entry_index IN (SELECT entry_index FROM entry"
        " WHERE group_id = ? AND entry_index >= ? AND entry_index < ? ORDER BY entry_index LIMIT 1000)"
        " AND end_bytes <= ?",
        (group_id, group_id, first[0], end, first[1] + max_bytes),
    )
    return False


def _turn_register(connection: apsw.Connection, crc: int) -> None:
    """An exclusive or over all rows: what comes in and what goes out is the same turn."""
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (_REGISTER,)).fetchone()
    set_meta(connection, _REGISTER, str(int(row[0] if row else 0) ^ crc))


def _name(group: Group) -> tuple[bytes, int]:
    return group.topic_id.bytes, group.partition_id


def _name_crc(group_id: int, topic_id: bytes, partition_id: int) -> int:
    crc: int = crc32c(struct.pack("<QI", group_id, partition_id) + topic_id)
    return crc


def _row_crc(row: tuple[Any, ...]) -> int:
    crc: int = crc32c(msgpack.packb(row))
    return crc
