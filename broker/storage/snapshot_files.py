"""The dedupe table of a snapshot record as a file of its own, beside the partition's log.

It is synced before a record of the journal names it. That record holds its CRC, so an older file under the same number
is not taken for it.
"""

from crc32c import crc32c

from broker.raft.dedupe import NOTHING_SEEN, DedupeSnapshot
from broker.raft.dedupe_codec import decode_dedupe, encode_dedupe
from broker.raft.snapshot import Snapshot
from broker.storage.disk import Disk
from broker.storage.entry import Corrupted
from broker.storage.group import Group, SnapshotState

_PREFIX = "snapshot-"


def group_folder(group_id: int) -> str:
    return f"partitions/{group_id}"


def _name(group_id: int, number: int) -> str:
    return f"{group_folder(group_id)}/{_PREFIX}{number}"


def write_snapshot(disk: Disk, group_id: int, snapshot: Snapshot) -> SnapshotState:
    """Durable when it returns."""
    if snapshot.dedupe == NOTHING_SEEN:
        return SnapshotState(snapshot.index, snapshot.configuration, snapshot.configuration_index)
    table = encode_dedupe(snapshot.dedupe)
    number = max(1, snapshot.index)
    file = disk.open(_name(group_id, number), create=True)
    try:
        file.truncate(0)
        file.write([table], 0)
        file.sync()
    finally:
        file.close()
    disk.sync_folder(group_folder(group_id))
    return SnapshotState(snapshot.index, snapshot.configuration, snapshot.configuration_index, number, crc32c(table))


def read_snapshot(disk: Disk, group: Group) -> Snapshot:
    """Raises Corrupted."""
    state = group.snapshot
    return Snapshot(
        group.first_index,
        group.start_offset,
        group.previous_term,
        state.index,
        state.configuration,
        state.configuration_index,
        _dedupe(disk, group) if state.file else NOTHING_SEEN,
    )


def _dedupe(disk: Disk, group: Group) -> DedupeSnapshot:
    state = group.snapshot
    try:
        file = disk.open(_name(group.group_id, state.file))
    except FileNotFoundError as error:
        raise Corrupted("the dedupe table of the snapshot is missing") from error
    try:
        table = file.read(0, file.size_bytes)
    finally:
        file.close()
    if crc32c(table) != state.file_crc:
        raise Corrupted("the dedupe table of the snapshot does not match its checksum")
    try:
        return decode_dedupe(table)
    except ValueError as error:
        raise Corrupted(f"the dedupe table of the snapshot is not readable: {error}") from error


def remove_old_snapshots(disk: Disk, group: Group) -> None:
    """Those before the one that the group names: a later one may be about to be named."""
    folder = group_folder(group.group_id)
    for name in disk.names(folder):
        if name.startswith(_PREFIX) and int(name.removeprefix(_PREFIX)) < group.snapshot.file:
            disk.remove(f"{folder}/{name}")
