"""Everything a broker keeps: its journal, the logs of its partitions, and values of its own."""

import secrets
import threading
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from broker.raft.snapshot import Snapshot
from broker.storage.disk import Disk, NoSpace
from broker.storage.group import DroppedGroup, Group, SnapshotState, dropped_value, group_value, position_value
from broker.storage.journal import Journal
from broker.storage.open_files import OpenFiles
from broker.storage.partition_log import PartitionLog
from broker.storage.record import Record, RecordKind, value_record
from broker.storage.round import Round, SnapshotRequest, meta_value
from broker.storage.snapshot_files import group_folder, write_snapshot

BROKER_ID = "broker_id"
COMMAND_EPOCH = "command_epoch"
_INCARNATION = "incarnation"
_LAST_GROUP = "last_group"
ASIDE = "aside"


class DroppedLog(NamedTuple):
    """Files that are to be removed or kept aside."""

    log: PartitionLog | None  # None: it goes on under another number
    group: DroppedGroup


# Topics that are deleted never come back; a partition that is moved away and back does so soon.
_MAX_FORMER = 20_000


class Store:
    """`values`, `former` and `logs` change on the writing thread only, when what changed them is durable.

    What is left for upkeep is handed over under a lock: logs with entries in memory, snapshots, dropped logs.
    """

    def __init__(
        self,
        disk: Disk,
        journal: Journal,
        files: OpenFiles,
        *,
        segment_bytes: int,
        values: dict[str, str],
        former: Iterable[tuple[bytes, int]],
        logs: Iterable[PartitionLog],
        found_sequence: int,
    ) -> None:
        """`found_sequence` is that of the last frame in the journal when it was opened."""
        self.disk = disk
        self.journal = journal
        self._files = files
        self._segment_bytes = segment_bytes
        self.found_sequence = found_sequence
        self.values = values
        self.former = dict.fromkeys(former)  # in order
        self.logs = {log.group.group_id: log for log in logs}
        self._last_group = max([int(values.get(_LAST_GROUP, "0")), *self.logs])
        self._lock = threading.Lock()
        self._unflushed: dict[PartitionLog, None] = {}
        self._unflushed_bytes = 0
        self._snapshots: dict[PartitionLog, Snapshot] = {}
        self._dropped: list[DroppedLog] = []
        self._aside: dict[int, DroppedGroup] = {}  # not moved there yet: a start does it

    @property
    def incarnation(self) -> str:
        return self.values[_INCARNATION]

    # The head of a journal segment; on the writing thread

    def head(self) -> list[Record]:
        self.values[_LAST_GROUP] = str(self._last_group)
        records = [value_record(RecordKind.META, 0, meta_value(self.values, list(self.former)))]
        for log in self.logs.values():
            group_id = log.group.group_id
            records.append(value_record(RecordKind.GROUP, group_id, group_value(log.group)))
            records.append(value_record(RecordKind.SYNCED, group_id, position_value(log.position)))
        waiting = list(self._aside.values())
        return records + [value_record(RecordKind.DROP, gone.group_id, dropped_value(gone)) for gone in waiting]

    def replay_from(self) -> int | None:
        """The oldest segment of the journal with entries that are not synced in their partition's files."""
        segments = [log.unsynced_segment for log in list(self.logs.values())]
        return min((segment for segment in segments if segment is not None), default=None)

    @property
    def broker_id(self) -> int | None:
        return int(self.values[BROKER_ID]) if BROKER_ID in self.values else None

    @property
    def command_epoch(self) -> int:
        """The highest epoch of a write manager that commanded this broker; folders up to 0.10 have none."""
        return int(self.values.get(COMMAND_EPOCH, "0"))

    # Groups; inside a round

    def set_value(self, round_: Round, name: str, value: str) -> None:
        round_.set_values({name: value}, lambda: self.values.update({name: value}))

    def renew_incarnation(self, round_: Round) -> None:
        """What this broker promised under the old one may be lost."""
        self.set_value(round_, _INCARNATION, f"{new_incarnation():016x}")

    def new_group_id(self) -> int:
        """Never used before: cached entries are known by it. A number that a lost round took is skipped."""
        self._last_group += 1
        return self._last_group

    def was_held(self, topic_id: UUID, partition_id: int) -> bool:
        return (topic_id.bytes, partition_id) in self.former

    def open_log(self, round_: Round, group: Group) -> PartitionLog:
        log = PartitionLog(self._files, group, segment_bytes=self._segment_bytes)
        round_.open(group, lambda: self.logs.update({group.group_id: log}))
        return log

    def drop_log(self, round_: Round, log: PartitionLog, *, aside: str | None = None) -> None:
        """Remembered: should the partition come back, it comes back as another member.

        `aside`: its files are kept under that name.
        """
        group = round_.group_of(log)
        former = group.topic_id.bytes, group.partition_id
        gone = DroppedGroup(group.group_id, former, aside)

        def dropped() -> None:
            self.logs.pop(group.group_id, None)
            self.former[former] = None
            if len(self.former) > _MAX_FORMER:
                del self.former[next(iter(self.former))]
            log.is_dropped = True
            if aside is not None:
                self._aside[group.group_id] = gone
            self._hand_over(DroppedLog(log, gone))

        round_.drop(log, gone, dropped)

    def install(self, snapshot: Snapshot) -> tuple[int, SnapshotState]:
        group_id = self.new_group_id()
        try:
            return group_id, write_snapshot(self.disk, group_id, snapshot)
        except NoSpace:
            self.abandoned(group_id)
            raise

    def installed(self, log: PartitionLog, old_id: int, group: Group) -> None:
        log.start_anew(group)
        self.logs.pop(old_id, None)
        self.logs[group.group_id] = log
        self._hand_over(DroppedLog(None, DroppedGroup(old_id)))

    def abandoned(self, group_id: int) -> None:
        self._hand_over(DroppedLog(None, DroppedGroup(group_id)))

    # Handed over to upkeep

    def _hand_over(self, dropped: DroppedLog) -> None:
        with self._lock:
            self._dropped.append(dropped)

    def request_snapshot(self, request: SnapshotRequest) -> None:
        """The newest one counts."""
        with self._lock:
            self._snapshots[request.log] = request.snapshot

    def request_again(self, request: SnapshotRequest) -> None:
        """There was no room for it; a newer one may have come meanwhile."""
        with self._lock:
            self._snapshots.setdefault(request.log, request.snapshot)

    def wrote(self, logs: Iterable[PartitionLog], size_bytes: int) -> None:
        with self._lock:
            # A log that was dropped in the same frame may be gone from the disk already.
            self._unflushed.update(dict.fromkeys(log for log in logs if not log.is_dropped))
            self._unflushed_bytes += size_bytes

    def unflushed_bytes(self) -> int:
        """Entries that are in the journal and in memory only."""
        return self._unflushed_bytes

    def take_unflushed(self) -> list[PartitionLog]:
        with self._lock:
            return list(self._unflushed)

    def flushed(self, logs: Iterable[PartitionLog]) -> None:
        with self._lock:
            for log in logs:
                if not log.unflushed_bytes:
                    self._unflushed.pop(log, None)
            self._unflushed_bytes = sum(log.unflushed_bytes for log in self._unflushed)

    def take_snapshots(self) -> list[SnapshotRequest]:
        with self._lock:
            requests = [SnapshotRequest(log, snapshot) for log, snapshot in self._snapshots.items()]
            self._snapshots.clear()
            return requests

    def take_dropped(self) -> list[DroppedLog]:
        with self._lock:
            dropped, self._dropped = self._dropped, []
            for log, _ in dropped:
                if log is not None:
                    self._unflushed.pop(log, None)
                    self._snapshots.pop(log, None)
            return dropped

    def remove(self, dropped: DroppedLog) -> None:
        folder = group_folder(dropped.group.group_id)
        if dropped.log is not None:
            dropped.log.close()
        self._files.forget(folder)
        try:
            remove_dropped(self.disk, dropped.group)
        except NoSpace:  # on some file systems removing needs room
            self._hand_over(dropped)
            raise
        self._files.forget(folder)  # what a reader has opened meanwhile
        self._aside.pop(dropped.group.group_id, None)

    def kept_aside(self) -> list[str]:
        return self.disk.names(ASIDE)

    def remove_aside(self, name: str) -> None:
        self.disk.remove(f"{ASIDE}/{name}")

    def close(self) -> None:
        for log in self.logs.values():
            log.close()
        self._files.close()
        self.journal.close()


def remove_dropped(disk: Disk, dropped: DroppedGroup) -> None:
    """Removes its files or sets them aside; may be repeated."""
    folder = group_folder(dropped.group_id)
    aside = None if dropped.aside is None else f"{ASIDE}/{dropped.aside}"
    if aside is None or disk.names(aside):
        disk.remove(folder)
    elif disk.names(folder):  # else it never had a file
        disk.rename(folder, aside)
    if aside is not None:
        sync_aside(disk)


def sync_aside(disk: Disk) -> None:
    if disk.names(ASIDE):
        disk.sync_folder(ASIDE)


def new_incarnation() -> int:
    return secrets.randbits(64)


def with_incarnation(values: dict[str, str], *, renew: bool) -> dict[str, str]:
    """`renew`: what this broker promised under its old one may be lost."""
    if _INCARNATION in values and not renew:
        return values
    return {**values, _INCARNATION: f"{new_incarnation():016x}"}
