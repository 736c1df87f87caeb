"""A replica as found on disk, for the Raft core to start from."""

from dataclasses import replace

from broker.raft.configuration import GroupConfiguration
from broker.raft.entry import Kind
from broker.raft.snapshot import Anchor, HardState, Stored
from broker.storage.disk import Disk
from broker.storage.entry import Corrupted, log_entry_of
from broker.storage.partition_file import BadBody
from broker.storage.partition_log import PartitionLog
from broker.storage.snapshot_files import read_snapshot


def stored_replica(disk: Disk, log: PartitionLog) -> Stored:
    """Raises Corrupted when what is there cannot be what was written: everything that is replayed is checked."""
    try:
        return _stored_replica(disk, log, log.group.hard)
    except BadBody:
        if not is_only_voter(log):
            raise
    # In a group of one all of it is committed: it needs no body to go on, and one that is bad is refused when read.
    return _stored_replica(disk, log, replace(log.group.hard, commit=log.tail.next_index - 1))


def _stored_replica(disk: Disk, log: PartitionLog, hard: HardState) -> Stored:
    snapshot = read_snapshot(disk, log.group)
    commit, last_index = hard.commit, log.tail.next_index - 1
    if commit > last_index:
        raise Corrupted(f"entries up to {commit} were committed, the log ends at {last_index}")
    anchor = max(snapshot.start_index - 1, min(snapshot.index, last_index))
    end = log.tail_at(anchor)
    return Stored(
        hard=hard,
        snapshot=snapshot,
        terms=log.terms(anchor),
        anchor=Anchor(anchor, end.end_offset, end.append_time),
        entries=tuple(log_entry_of(entry) for entry in log.stream(anchor + 1, bodies_from=commit + 1)),
    )


def is_only_voter(log: PartitionLog) -> bool:
    """By the last configuration in the log, committed or not. Raises Corrupted."""
    configuration = log.group.snapshot.configuration
    for entry in log.stream(max(log.group.first_index, log.group.snapshot.index + 1), bodies_from=log.tail.next_index):
        if entry.kind == Kind.CONFIGURATION:
            body = log_entry_of(entry).body
            assert isinstance(body, GroupConfiguration)
            configuration = body
    return [voter.incarnation for voter in configuration.voters] == [log.group.incarnation]
