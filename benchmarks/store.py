"""The storage of one broker without the broker, as the benchmarks call it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import apsw

from broker.storage.database import PAGE_BYTES


class BenchStore:
    """A file with the settings of a broker's, without its indexes and chains."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._connection = apsw.Connection(str(folder / "steps.db"))
        for pragma in (f"page_size={PAGE_BYTES}", "journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._connection.execute("CREATE TABLE entry (number INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def commit(self, batch: bytes) -> None:
        """It is on disk when this returns."""
        self._connection.execute("INSERT INTO entry (body) VALUES (?)", (batch,))

    def read(self) -> bytes | memoryview:
        """The batch that was committed first."""
        body = self._connection.execute("SELECT body FROM entry WHERE number = 1").get
        assert isinstance(body, bytes)
        return body

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def opened_store(folder: Path) -> Iterator[BenchStore]:
    store = BenchStore(folder)
    try:
        yield store
    finally:
        store.close()
