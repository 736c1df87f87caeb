"""A replica as found on disk, for the Raft core to start from."""

from broker.raft.snapshot import Anchor, Stored
from broker.storage.disk import Disk
from broker.storage.entry import Corrupted, log_entry_of
from broker.storage.partition_log import PartitionLog
from broker.storage.snapshot_files import read_snapshot


def stored_replica(disk: Disk, log: PartitionLog) -> Stored:
    """Raises Corrupted when what is there cannot be what was written: everything that is replayed is checked."""
    group = log.group
    snapshot = read_snapshot(disk, group)
    commit, last_index = group.hard.commit, log.tail.next_index - 1
    if commit > last_index:
        raise Corrupted(f"entries up to {commit} were committed, the log ends at {last_index}")
    anchor = max(snapshot.start_index - 1, min(snapshot.index, last_index))
    end = log.tail_at(anchor)
    return Stored(
        hard=group.hard,
        snapshot=snapshot,
        terms=log.terms(anchor),
        anchor=Anchor(anchor, end.end_offset, end.append_time),
        entries=tuple(log_entry_of(entry) for entry in log.stream(anchor + 1, bodies_from=commit + 1)),
    )
