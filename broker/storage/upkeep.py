"""Everything that is off the path of an acknowledgement, on one thread, in turn and in small pieces.

Entries go from memory into the partitions' files, files are synced so that segments of the journal can be used again,
snapshots are written, what retention and deletion leave is unlinked, and what is stored is read once in a while to see
that it is sound.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from broker.raft.snapshot import Snapshot
from broker.storage.disk import DiskError, NoSpace
from broker.storage.entry import Corrupted
from broker.storage.group import Group
from broker.storage.partition_log import PartitionLog
from broker.storage.round import Round, SnapshotRequest
from broker.storage.scrubber import Scrubber
from broker.storage.snapshot_files import remove_old_snapshots, write_snapshot
from broker.storage.store import Store
from broker.storage.writer import Change, Writer, fail_stop
from myqueue.protocol.errors import Unavailable
from service.logs import Log as Logger

_INTERVAL_S = 1.0
_GATHER_S = 0.05  # entries of so long go into the files together: beside each small append it would be in its way
_FULL_DISK_PAUSE_S = 0.2
_FLUSH_BYTES = 4 << 20
_HURRY_BYTES = 1 << 20
_HURRY_SHARE = 4  # what waits for the files counts as waiting for the disk: they are written at this part of the limit
_PREFILL_BYTES = 1 << 20
_IDLE_S = 1.0
# The kernel's pages of what was written a while ago make room: a log grows without end, and so would they.
_KEPT_PAGES_BYTES = 8 << 20
_KEPT_PAGES_IN_ALL_BYTES = 256 << 20


class _Unreadable(Exception):
    """A file could not be read; it is tried again."""


class Upkeep:
    def __init__(
        self,
        store: Store,
        writer: Writer,
        logger: Logger,
        *,
        scrub_interval_s: float,
        on_damage: Callable[[PartitionLog, str], None],
        on_failure: Callable[[], None] = fail_stop,
    ) -> None:
        self._store = store
        self._writer = writer
        self._logger = logger
        self._on_damage = on_damage
        self._on_failure = on_failure
        self._scrubber = Scrubber(scrub_interval_s, on_damage)
        self._hurry_bytes = min(_HURRY_BYTES, writer.max_waiting_bytes // _HURRY_SHARE)
        self._wake = threading.Event()
        self._hurry = threading.Event()  # enough has come together
        self._stopping = False
        self._is_full = False
        self._last_written_s = 0.0
        self._submitted: dict[int, int] = {}  # by group: index of the snapshot whose record is being written
        self._cut: dict[PartitionLog, None] = {}  # logs whose start or snapshot has moved
        self._thread: threading.Thread | None = None
        writer.on_written = self._on_written

    def _on_written(self) -> None:
        self._last_written_s = time.monotonic()
        if not self._wake.is_set():
            self._wake.set()
        store = self._store
        if store.unflushed_bytes() >= self._hurry_bytes or not store.journal.spare_segments or self._is_full:
            self._hurry.set()

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        if self._thread is None:
            # Entries of leaders are refused until the next segment of the journal is there.
            self._wake.set()
            self._hurry.set()
            self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        self._hurry.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            if self._wake.wait(_INTERVAL_S):
                self._hurry.wait(_GATHER_S)
            self._hurry.clear()
            self._wake.clear()
            try:
                self.run_once()
            except Exception as error:
                if isinstance(error, Unavailable) and self._writer.is_stopping:
                    return  # the process ends: what upkeep wanted to write is done again after the next start
                self._logger.exception("upkeep of the disk failed; the process stops")
                self._on_failure()
                return

    def run_once(self) -> None:
        """Everything that is to be done now. A full disk stops only what needs room."""
        is_full = False
        for step in (
            self._remove_dropped,
            self._flush,
            self._sync,
            self._write_snapshots,
            self._remove_cut,
            self._idle,
        ):
            try:
                step()
            except NoSpace:
                is_full = True
        if is_full and not self._is_full:
            self._logger.warning("the disk is full; entries wait in memory and in the journal")
        self._is_full = is_full
        if is_full:
            time.sleep(_FULL_DISK_PAUSE_S)
            self._wake.set()

    def _remove_dropped(self) -> None:
        full: NoSpace | None = None
        for dropped in self._store.take_dropped():
            if dropped.log is not None:
                self._cut.pop(dropped.log, None)
            try:
                self._store.remove(dropped)
            except NoSpace as error:
                full = error
        if full is not None:
            raise full

    def _flush(self) -> None:
        logs = self._store.take_unflushed()
        try:
            for log in logs:
                while log.flush(_FLUSH_BYTES):
                    pass
        finally:
            self._store.flushed(logs)

    def _sync(self) -> None:
        """Segments of the journal before the current one are to be used again."""
        journal = self._store.journal
        current = journal.segment
        logs = list(self._store.logs.values())
        for log in logs:
            segment = log.unsynced_segment
            if segment is not None and segment < current:
                log.sync()
                log.drop_cache(max(_KEPT_PAGES_BYTES, _KEPT_PAGES_IN_ALL_BYTES // len(logs)))
        oldest = self._store.replay_from()
        journal.release(current if oldest is None else min(oldest, current))
        if not journal.spare_segments or not self._writer.is_low():
            journal.prepare()

    def _write_snapshots(self) -> None:
        full: NoSpace | None = None
        for log, snapshot in self._store.take_snapshots():
            try:
                self._write_snapshot(log, snapshot)
            except Corrupted as error:
                self._on_damage(log, str(error))
            except _Unreadable as error:
                self._logger.warning("a snapshot waits", topic=log.group.settings.topic, why=str(error))
            except NoSpace as error:
                self._store.request_again(SnapshotRequest(log, snapshot))
                full = error
        if full is not None:
            raise full

    def _write_snapshot(self, log: PartitionLog, snapshot: Snapshot) -> None:
        """The log starts where the snapshot says only when its table is durable: until then a restart replays."""
        group = log.group
        if group.suspect or snapshot.index <= max(group.snapshot.index, self._submitted.get(group.group_id, 0)):
            return
        started = group
        if snapshot.start_index > group.first_index:
            try:
                last_cut = log.tail_at(snapshot.start_index - 1)
            except DiskError as error:  # of a read: nothing is wrong with what is written
                raise _Unreadable(str(error)) from error
            started = replace(
                group,
                first_index=snapshot.start_index,
                start_offset=snapshot.start_offset,
                start_bytes=last_cut.end_bytes,
                start_crc=last_cut.crc,
                previous_term=snapshot.previous_term,
            )
        started = replace(started, snapshot=write_snapshot(self._store.disk, group.group_id, snapshot))

        def change(round_: Round) -> None:
            now = round_.group_of(log)
            if now.group_id == group.group_id:  # else the log has started anew meanwhile
                round_.set_group(log, _with_start(now, started))

        self._submitted[group.group_id] = snapshot.index  # its file must not be written again
        future = self._writer.submit(Change(change, uses_reserve=True))
        future.add_done_callback(lambda _: self._started(log))

    def _started(self, log: PartitionLog) -> None:
        self._submitted.pop(log.group.group_id, None)
        self._cut[log] = None
        self._wake.set()

    def _remove_cut(self) -> None:
        for log in list(self._cut):
            self._cut.pop(log, None)  # first: the next cut may be marked meanwhile
            try:
                log.remove_below()
                remove_old_snapshots(self._store.disk, log.group)
            except NoSpace:
                self._cut[log] = None
                raise

    def _idle(self) -> None:
        self._scrubber.run([log for log in list(self._store.logs.values()) if log.group.suspect is None])
        now_s = time.monotonic()
        while now_s - self._last_written_s > _IDLE_S and not self._wake.is_set() and not self._stopping:
            if not self._store.journal.prefill(_PREFILL_BYTES):
                break


def _with_start(now: Group, started: Group) -> Group:
    return replace(
        now,
        first_index=started.first_index,
        start_offset=started.start_offset,
        start_bytes=started.start_bytes,
        start_crc=started.start_crc,
        previous_term=started.previous_term,
        snapshot=started.snapshot,
    )
