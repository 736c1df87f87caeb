"""Replicas as they lie in the brokers' files: read beside the brokers, compared with each other, and damaged."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import apsw

from broker.raft.configuration import GroupConfiguration
from broker.raft.entry import Kind
from broker.storage import groups
from broker.storage.database import FILE
from broker.storage.entry import Entry, chained_crc
from broker.storage.groups import Damaged, Group
from broker.storage.records import spoken

_COLUMNS = "entry_index, term, kind, base_offset, count, append_time, head, marks, body"


@dataclass(frozen=True)
class StoredReplica:
    """What a broker's file says about a replica, without its log."""

    incarnation: int
    configuration: GroupConfiguration  # the last one in the log or before it, committed or not
    start_index: int
    start_offset: int
    end_offset: int

    @property
    def is_voter(self) -> bool:
        return any(member.incarnation == self.incarnation for member in self.configuration.voters)

    @property
    def is_changing(self) -> bool:
        """A learner is joining, or a member that lost its data has not been removed yet."""
        brokers = [member.broker_id for member in self.configuration.members]
        return bool(self.configuration.learners) or len(set(brokers)) < len(brokers)


@dataclass(frozen=True)
class StoredLog:
    start_index: int
    entries: dict[int, Entry]
    broken: str | None  # what is wrong with it

    @property
    def end_offset(self) -> int:
        return max((entry.end_offset for entry in self.entries.values()), default=0)

    @property
    def prints(self) -> dict[int, tuple[int, str]]:
        """By index: the term, and a fingerprint of everything the entry says."""
        return {index: (entry.term, _print(entry)) for index, entry in self.entries.items()}


def stored_replica(folder: Path, topic_id: UUID, partition_id: int) -> StoredReplica | None:
    """None when the broker does not hold the partition."""
    with _reading(folder) as connection:
        group = None if connection is None else _find(connection, topic_id, partition_id)
        if connection is None or group is None:
            return None
        configuration = groups.load_snapshot(connection, group).configuration
        newer = connection.execute(
            f"SELECT {_COLUMNS} FROM entry WHERE group_id = ? AND entry_index >= ? AND kind = ?"
            " ORDER BY entry_index DESC LIMIT 1",
            (group.group_id, group.first_index, Kind.CONFIGURATION),
        ).fetchone()
        if newer is not None:
            body = spoken(Entry(*newer)).body
            assert isinstance(body, GroupConfiguration)
            configuration = body
        end = connection.execute(
            "SELECT base_offset + count FROM entry WHERE group_id = ? ORDER BY entry_index DESC LIMIT 1",
            (group.group_id,),
        ).fetchone()
        end_offset = group.start_offset if end is None else max(group.start_offset, end[0])
        return StoredReplica(group.incarnation, configuration, group.first_index, group.start_offset, end_offset)


def stored_log(folder: Path, topic_id: UUID, partition_id: int) -> StoredLog:
    with _reading(folder) as connection:
        assert connection is not None
        group = _find(connection, topic_id, partition_id)
        assert group is not None
        entries: dict[int, Entry] = {}
        crc, broken, index = group.start_crc, None, group.first_index - 1
        rows = connection.execute(
            f"SELECT {_COLUMNS}, crc FROM entry WHERE group_id = ? AND entry_index >= ? ORDER BY entry_index",
            (group.group_id, group.first_index),
        )
        for *fields, stored_crc in rows:
            entry = Entry(*fields)
            crc = chained_crc(crc, entry)
            if entry.index != index + 1 or crc != stored_crc:
                broken = broken or f"entry {entry.index} does not follow {index} or its checksum is wrong"
            index = entry.index
            entries[index] = entry
        return StoredLog(group.first_index, entries, broken)


@contextmanager
def _reading(folder: Path) -> Iterator[apsw.Connection | None]:
    """One view of the file: the broker may be writing. None while there is no file."""
    if not (folder / FILE).exists():
        yield None
        return
    connection = apsw.Connection(str(folder / FILE), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_timeout(5000)
        connection.execute("BEGIN")
        is_made = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'partition_group'").fetchall()
        yield connection if is_made else None
    finally:
        connection.close()


def _find(connection: apsw.Connection, topic_id: UUID, partition_id: int) -> Group | None:
    for group in groups.load(connection):
        if (group.topic_id, group.partition_id) == (topic_id, partition_id) and not isinstance(group, Damaged):
            return group
    return None


def keeps_topic(folder: Path, topic_id: UUID) -> bool:
    """Also when it only has not been deleted yet: a partition's row goes last, after all its entries."""
    with _reading(folder) as connection:
        assert connection is not None
        found = connection.execute("SELECT 1 FROM partition_group WHERE topic_id = ?", (topic_id.bytes,)).fetchall()
        return bool(found)


def _print(entry: Entry) -> str:
    head = repr((entry.index, entry.term, entry.kind, entry.base_offset, entry.count, entry.append_time))
    return blake2b(head.encode() + entry.head + entry.marks + entry.body, digest_size=16).hexdigest()


def differences(replicas: Sequence[StoredLog], end_offset: int) -> list[str]:
    """I2 and I8 in the files: up to `end_offset`, which was acknowledged, all replicas hold the same entries."""
    wrong = [f"replica {n}: {replica.broken}" for n, replica in enumerate(replicas) if replica.broken]
    wrong += [
        f"replica {n} ends at {replica.end_offset}, {end_offset} was acknowledged"
        for n, replica in enumerate(replicas)
        if replica.end_offset < end_offset
    ]
    for n, replica in enumerate(replicas):
        wrong += [
            f"replica {n}: term {later.term} of entry {later.index} follows term {earlier.term}"
            for earlier, later in pairwise(replica.entries.values())
            if later.term < earlier.term
        ]
    first, *others = (replica.prints for replica in replicas)
    committed = {index for index, entry in replicas[0].entries.items() if entry.end_offset <= end_offset}
    for n, other in enumerate(others, 1):
        shared = committed & other.keys()
        wrong += [
            f"replicas 0 and {n} differ at entry {index}" for index in sorted(shared) if first[index] != other[index]
        ]
        if replicas[0].start_index == replicas[n].start_index and shared != committed:
            wrong.append(f"replica {n} lacks entries {sorted(committed - shared)[:5]}")
    return wrong


def flip_bits(file: Path, needle: bytes, at: int = 0) -> int:
    """Turns one bit of the byte `at` behind the start of every `needle` in the file; how many there were."""
    data = bytearray(file.read_bytes())
    found = 0
    place = data.find(needle)
    while place >= 0:
        data[place + at] ^= 0x04
        found += 1
        place = data.find(needle, place + len(needle))
    file.write_bytes(data)
    return found
