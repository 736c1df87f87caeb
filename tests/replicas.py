"""Replicas as they lie in the brokers' files: read beside the brokers, and compared with each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from uuid import UUID

from broker.raft.configuration import GroupConfiguration
from broker.raft.entry import Kind
from broker.storage.entry import Entry, chained_crc, log_entry_of
from broker.storage.group import Group
from tests.stored_files import StoredGroup, read_folder, while_written


@dataclass(frozen=True)
class StoredReplica:
    """What a broker's file says about a replica, without its log."""

    incarnation: int
    configuration: GroupConfiguration  # the last one in the log or before it, committed or not
    start_index: int
    start_offset: int
    end_offset: int
    retention: tuple[int | None, int | None]  # ms and bytes

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
    stored = _find(folder, topic_id, partition_id)
    if stored is None:
        return None
    group = stored.group
    configuration = group.snapshot.configuration
    for entry in stored.entries:
        if entry.kind == Kind.CONFIGURATION and entry.index > group.snapshot.index:
            body = log_entry_of(entry).body
            assert isinstance(body, GroupConfiguration)
            configuration = body
    end_offset = max([group.start_offset, *(entry.end_offset for entry in stored.entries)])
    retention = group.settings.retention_ms, group.settings.retention_bytes
    return StoredReplica(group.incarnation, configuration, group.first_index, group.start_offset, end_offset, retention)


def stored_log(folder: Path, topic_id: UUID, partition_id: int) -> StoredLog:
    stored = _find(folder, topic_id, partition_id)
    assert stored is not None
    entries: dict[int, Entry] = {}
    crc, index, broken = stored.group.start_crc, stored.group.first_index - 1, None
    for entry, chain in zip(stored.entries, stored.chains, strict=True):
        crc = chained_crc(crc, entry)
        if entry.index != index + 1 or crc != chain:
            broken = broken or f"entry {entry.index} does not follow {index} or its checksum is wrong"
        index = entry.index
        entries[index] = entry
    return StoredLog(stored.group.first_index, entries, broken)


def keeps_topic(folder: Path, topic_id: UUID) -> bool:
    return bool(while_written(lambda: read_folder(folder, lambda group: group.topic_id == topic_id)))


def _find(folder: Path, topic_id: UUID, partition_id: int) -> StoredGroup | None:
    def is_wanted(group: Group) -> bool:
        return (group.topic_id, group.partition_id) == (topic_id, partition_id)

    return next(iter(while_written(lambda: read_folder(folder, is_wanted))), None)


def _print(entry: Entry) -> str:
    head = repr((entry.index, entry.term, entry.kind, entry.base_offset, entry.count, entry.append_time))
    return blake2b(head.encode() + entry.head + entry.dedup_records + entry.body, digest_size=16).hexdigest()


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
