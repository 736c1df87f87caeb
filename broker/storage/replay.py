"""A replica as found on disk, for the Raft core to start from."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from broker.raft.configuration import GroupConfiguration
from broker.raft.entry import Kind, LogEntry
from broker.raft.snapshot import Anchor, Stored
from broker.storage.disk import Disk
from broker.storage.entry import Corrupted, Entry, log_entry_of
from broker.storage.partition_file import BadBody
from broker.storage.partition_log import PartitionLog
from broker.storage.snapshot_files import read_snapshot


class Replay(NamedTuple):
    stored: Stored
    damage: str | None  # a bad body: the group needs the vote all the same, and who has the entry in sound form


def stored_replica(disk: Disk, log: PartitionLog) -> Replay:
    """Raises Corrupted when what is there cannot be what was written: everything that is replayed is checked.

    A bad body leaves term, vote and the rest of the log as they were: the replica takes part in its group, with entries
    that have no bodies. Who needs one reads it from the file, which refuses the bad one.
    """
    commit, last_index = log.group.hard.commit, log.tail.next_index - 1
    try:
        return Replay(_stored(disk, log, [log_entry_of(entry) for entry in _entries(log, commit + 1)]), None)
    except BadBody as error:
        entries = [_without_body(log_entry_of(entry)) for entry in _entries(log, last_index + 1)]
        return Replay(_stored(disk, log, entries), str(error))


def _entries(log: PartitionLog, bodies_from: int) -> Iterator[Entry]:
    return log.stream(_anchor_index(log) + 1, bodies_from)


def _anchor_index(log: PartitionLog) -> int:
    group = log.group
    return max(group.first_index - 1, min(group.snapshot.index, log.tail.next_index - 1))


def _stored(disk: Disk, log: PartitionLog, entries: Sequence[LogEntry]) -> Stored:
    hard, last_index = log.group.hard, log.tail.next_index - 1
    if hard.commit > last_index:
        raise Corrupted(f"entries up to {hard.commit} were committed, the log ends at {last_index}")
    anchor = _anchor_index(log)
    end = log.tail_at(anchor)
    return Stored(
        hard=hard,
        snapshot=read_snapshot(disk, log.group),
        terms=log.terms(anchor),
        anchor=Anchor(anchor, end.end_offset, end.append_time),
        entries=tuple(entries),
    )


def _without_body(entry: LogEntry) -> LogEntry:
    return replace(entry, body=None) if entry.kind is Kind.MESSAGES else entry


def is_only_voter(log: PartitionLog) -> bool:
    """By the last configuration in the log, committed or not. Raises Corrupted."""
    configuration = log.group.snapshot.configuration
    for entry in log.stream(max(log.group.first_index, log.group.snapshot.index + 1), bodies_from=log.tail.next_index):
        if entry.kind == Kind.CONFIGURATION:
            body = log_entry_of(entry).body
            assert isinstance(body, GroupConfiguration)
            configuration = body
    return [voter.incarnation for voter in configuration.voters] == [log.group.incarnation]
