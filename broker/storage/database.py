"""One SQLite file for a broker: a single writing connection, a few reading ones, checkpoints on their own.

In memory there is one connection for everything, behind a lock: this build of SQLite has no shared cache.
"""

import fcntl
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import apsw
from crc32c import crc32c

from broker.storage.page_cache import PageCache
from broker.storage.wal import lost_transactions, prepare

APPLICATION_ID = 0x6D79516C  # "myQl"
SCHEMA_VERSION = 2
PAGE_BYTES = 16384
FILE = "broker.db"
CONDEMNED = "broker.condemned"
_META_CHECK = "check"
_PASSES = 4
# Index pages and the last leaf are what is worth keeping; bodies pass through, and a small cache stays in the CPU's.
_WRITER_CACHE_KIB = 4096
_READER_CACHE_KIB = 1024
_SHORT_STALL_BYTES = 8 << 20

# Entries are a plain rowid table, not clustered by (group_id, entry_index): appends of many partitions then fill the
# same last page, which halves what a commit writes, and large batches stay out of the index pages.
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;

CREATE TABLE partition_group (
    group_id INTEGER PRIMARY KEY,
    topic_id BLOB NOT NULL,
    partition_id INTEGER NOT NULL,
    topic TEXT NOT NULL,
    incarnation TEXT NOT NULL,                    -- of this replica, 16 hex digits
    retention_ms INTEGER,
    retention_bytes INTEGER,
    term INTEGER NOT NULL,
    vote BLOB,                                    -- member this replica voted for in its term
    commit_index INTEGER NOT NULL,                -- known to be committed; may lag behind
    first_index INTEGER NOT NULL,
    start_offset INTEGER NOT NULL,
    start_bytes INTEGER NOT NULL,                 -- end_bytes of the entry before the first
    start_crc INTEGER NOT NULL,                   -- crc of the entry before the first
    crc INTEGER NOT NULL,                         -- of all of the above
    dropped INTEGER NOT NULL DEFAULT 0            -- 1: not served, its entries are being deleted
);
CREATE UNIQUE INDEX group_by_name ON partition_group (topic_id, partition_id) WHERE dropped = 0;

-- Partitions this file once held: it must not come back to them under its old name.
CREATE TABLE former_group (topic_id BLOB, partition_id INTEGER, PRIMARY KEY (topic_id, partition_id)) WITHOUT ROWID;

-- Apart from the rows that change with every vote: a record can be large.
CREATE TABLE snapshot (group_id INTEGER PRIMARY KEY, crc INTEGER NOT NULL, record BLOB NOT NULL);

-- The body comes last: reading what stands before it does not touch its overflow pages.
CREATE TABLE entry (
    group_id INTEGER NOT NULL,
    entry_index INTEGER NOT NULL,
    term INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    base_offset INTEGER NOT NULL,
    count INTEGER NOT NULL,
    append_time INTEGER NOT NULL,
    end_bytes INTEGER NOT NULL,                   -- bytes of batches and marks up to and with this entry
    crc INTEGER NOT NULL,                         -- chained to the previous entry's
    head BLOB NOT NULL,
    marks BLOB NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX entry_by_index ON entry (group_id, entry_index);
CREATE INDEX entry_by_offset ON entry (group_id, base_offset) WHERE count > 0;
"""


class StorageRefused(Exception):
    """The data folder cannot be used as it is; the message says why."""


class StorageDamaged(Exception):
    """Nothing in the file can be relied on."""


class Database:
    def __init__(
        self,
        folder: Path | None,
        *,
        read_connections: int = 4,
        observe_commit: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`folder` None keeps everything in memory."""
        self._observe_commit = observe_commit
        self._lock_file: IO[str] | None = None
        self._write_lock = threading.Lock()
        self._readers: queue.LifoQueue[apsw.Connection] = queue.LifoQueue()
        self._checkpointer: apsw.Connection | None = None
        self._connections: list[apsw.Connection] = []
        self._page_cache: PageCache | None = None
        self.wal_frames = 0  # in the WAL after the last commit
        self._moved_frames = 0  # of them, already in the database file
        self.on_commit: Callable[[], None] = lambda: None
        self.path = None if folder is None else folder / FILE
        try:
            self._open(folder, read_connections)
        except (apsw.NotADBError, apsw.CorruptError) as error:
            self.close()
            raise StorageDamaged(f"{self.path} is not a readable SQLite file: {error}") from error
        except (StorageRefused, StorageDamaged):
            self.close()
            raise

    def _open(self, folder: Path | None, read_connections: int) -> None:
        if folder is not None:
            self._own(folder)
            if self._condemned(folder).exists():
                raise StorageDamaged(f"{self.path} was found damaged before")
        self._writer = self._connect()
        self._check_wal()
        self._create_or_check()
        self._check_meta()
        if folder is not None:
            _sync_folder(folder)
            for _ in range(read_connections):
                reader = self._connect(_READER_CACHE_KIB)
                reader.execute("PRAGMA query_only = ON")
                self._readers.put(reader)
            self._checkpointer = self._connect(_READER_CACHE_KIB)
            self._page_cache = PageCache(folder / FILE)
            self._writer.set_wal_hook(self._after_commit)
        self.incarnation: str = self.meta("incarnation") or self._first_incarnation()

    def _own(self, folder: Path) -> None:
        """Two processes on one file would each number entries on their own."""
        folder.mkdir(parents=True, exist_ok=True)
        self._lock_file = (folder / "broker.lock").open("a")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageRefused(f"{folder} is in use by another broker") from error

    def _connect(self, cache_kib: int = _WRITER_CACHE_KIB) -> apsw.Connection:
        connection = apsw.Connection(":memory:" if self.path is None else str(self.path))
        self._connections.append(connection)
        connection.set_busy_timeout(10_000)
        for pragma in (
            f"page_size = {PAGE_BYTES}",
            "journal_mode = WAL",
            "synchronous = FULL",
            "wal_autocheckpoint = 0",
            f"cache_size = -{cache_kib}",
            "cell_size_check = ON",
            "temp_store = MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        return connection

    def _create_or_check(self) -> None:
        found = self._writer.pragma("application_id"), self._writer.pragma("user_version")
        if found == (0, 0) and not self._writer.execute("SELECT 1 FROM sqlite_schema").fetchall():
            with self.transaction() as connection:
                connection.execute(_SCHEMA)
                connection.pragma("application_id", APPLICATION_ID)
                connection.pragma("user_version", SCHEMA_VERSION)
            return
        if found[0] != APPLICATION_ID:
            raise StorageRefused(f"{self.path} was not made by a myqueue broker")
        if found[1] != SCHEMA_VERSION:
            raise StorageRefused(f"{self.path} has version {found[1]}; this broker reads version {SCHEMA_VERSION}")

    def _check_wal(self) -> None:
        if self.path is None:
            return
        self._writer.pragma("application_id")  # the first read goes through the WAL
        # SQLite tells how many frames are good. The file beside it that says so too must not be opened here: closing
        # it would drop SQLite's locks on it, and whoever opened the database next would make it anew under our feet.
        valid, _ = self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        if lost_transactions(self.path.with_name(self.path.name + "-wal"), max(0, valid)):
            raise StorageDamaged(f"{self.path} has lost transactions from its WAL")

    def _check_meta(self) -> None:
        rows = self._writer.execute("SELECT name, value FROM meta").fetchall()
        if rows and (_META_CHECK, _meta_crc(self._writer)) not in rows:
            raise StorageDamaged(f"{self.path}: the broker's own record does not match its checksum")

    def prepare_wal(self, size_bytes: int) -> None:
        """Before anything is written: room for the first commits."""
        if self.path is not None:
            prepare(self.path.with_name(self.path.name + "-wal"), size_bytes)

    def condemn(self) -> None:
        """The next start does not trust this file."""
        if self.path is not None:
            self._condemned(self.path.parent).touch()
            _sync_folder(self.path.parent)

    @staticmethod
    def _condemned(folder: Path) -> Path:
        return folder / CONDEMNED

    def _first_incarnation(self) -> str:
        incarnation = secrets.token_hex(8)
        with self.transaction() as connection:
            set_meta(connection, "incarnation", incarnation)
        return incarnation

    def meta(self, name: str) -> str | None:
        with self.reading() as connection:
            row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    @contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """Durable when it ends without an error. A failed COMMIT is rolled back before the error goes on."""
        with self._write_lock:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                started = time.perf_counter()
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
            self._observe_commit(time.perf_counter() - started)

    @contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """Copy and finish every statement inside: an open one would hold back checkpoints."""
        if self.path is None:
            with self._write_lock:
                yield self._writer
            return
        connection = self._readers.get()
        try:
            yield connection
        finally:
            self._readers.put(connection)

    def checkpoint(self) -> None:
        """Moves everything in the WAL into the database file, so that the next commit starts the WAL over."""
        if self._checkpointer is None:
            return
        # Most of it beside the writer; then the rest while the writer waits. Without that moment the WAL would grow as
        # long as the load lasts, and SQLite's own way to wait for it polls and can starve.
        for _ in range(_PASSES):
            self._move_frames(self._checkpointer)
            if self.unmoved_bytes < _SHORT_STALL_BYTES:
                break
        with self._write_lock:
            self._move_frames(self._checkpointer)
        if self._page_cache is not None:
            self._page_cache.give_up_old()

    def _move_frames(self, connection: apsw.Connection) -> None:
        _, self._moved_frames = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    @property
    def unmoved_bytes(self) -> int:
        """Bytes in the WAL that the database file still has to take."""
        return max(0, self.wal_frames - self._moved_frames) * PAGE_BYTES

    def _after_commit(self, _connection: apsw.Connection, _name: str, frames: int) -> int:
        if frames < self.wal_frames:  # the WAL started over
            self._moved_frames = 0
        self.wal_frames = frames
        self.on_commit()
        return apsw.SQLITE_OK

    def close(self) -> None:
        for connection in reversed(self._connections):
            connection.close()
        if self._page_cache is not None:
            self._page_cache.close()
            self._page_cache = None
        if self._lock_file is not None:
            self._lock_file.close()


def set_meta(connection: apsw.Connection, name: str, value: str) -> None:
    statement = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"
    connection.execute(statement, (name, value))
    connection.execute(statement, (_META_CHECK, _meta_crc(connection)))


def _meta_crc(connection: apsw.Connection) -> str:
    rows = connection.execute("SELECT name, value FROM meta WHERE name != ? ORDER BY name", (_META_CHECK,)).fetchall()
    return str(crc32c(repr(rows).encode()))


def _sync_folder(folder: Path) -> None:
    """The file's name must survive a power failure too, and so must the folder's."""
    for path in (folder, folder.parent):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
