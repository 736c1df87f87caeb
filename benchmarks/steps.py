"""`python -m benchmarks.steps`: what the steps of one batch cost alone, in one thread, without queues or network."""

import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import apsw
import pyarrow as pa
from crc32c import crc32c
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from rich.console import Console
from rich.table import Table

from benchmarks.workload import values_of
from broker.storage.database import PAGE_BYTES
from myqueue.decoding import Messages, chunks_in, table_of
from myqueue.protocol.batch import SCHEMA, decode_header, encode_record_batch, header_for, no_headers, validate

ROUNDS = 100
Step = tuple[str, str, Callable[[], object]]


def main() -> int:
    console = Console()
    for size, count in ((100, 8_600), (100, 16), (1024, 1_000)):
        with tempfile.TemporaryDirectory(prefix="myqueue-steps-") as folder:
            table = Table(title=f"a batch of {count} messages of {size} bytes", title_justify="left")
            for heading in ("where", "step"):
                table.add_column(heading)
            for heading in ("µs a batch", "ns a message"):
                table.add_column(heading, justify="right")
            for where, name, step in steps(size, count, Path(folder)):
                seconds = best_of(step)
                table.add_row(where, name, f"{seconds * 1e6:,.0f}", f"{seconds / count * 1e9:,.0f}")
            console.print(table)
    return 0


def best_of(step: Callable[[], object]) -> float:
    """Seconds of the best round, which nothing disturbed."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - began)
    return best


def steps(size: int, count: int, folder: Path) -> list[Step]:
    values = values_of(size)[:count]
    timestamps = [time.time_ns() // 1_000_000] * count
    key_type = SCHEMA.field("key").type

    def record_batch() -> pa.RecordBatch:
        columns = [
            pa.nulls(count, key_type),
            pa.array(values, pa.binary()),
            pa.array(timestamps, SCHEMA.field("timestamp").type),
            no_headers(count),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    rows = record_batch()
    body = encode_record_batch(rows)
    batch = header_for(UUID(int=1), 0, body, count).pack() + body
    cipher = AESGCM(bytes(32))
    nonces = iter(range(1 << 30))
    storage = _Storage(folder)
    (chunk,) = chunks_in(batch, 0, 0)
    return [
        ("client", "values into Arrow columns", record_batch),
        ("client", "Arrow body as bytes", lambda: encode_record_batch(rows)),
        ("everybody", "CRC32C of the body", lambda: crc32c(body)),
        ("leader", "full validation", lambda: validate(decode_header(batch), memoryview(batch)[64:])),
        ("brokers", "MAC for one peer", lambda: cipher.encrypt(next(nonces).to_bytes(12, "big"), b"", batch)),
        ("brokers", "insert and commit, with its fsync", lambda: storage.store(batch)),
        ("brokers", "the same, and its checkpoint", lambda: storage.checkpoint_after(batch)),
        ("brokers", "read from the data file", storage.read),
        ("consumer", "check and decode", lambda: list(chunks_in(batch, 0, 0))),
        ("consumer", "every message an object", lambda: deque(Messages("t", chunk).iterator, maxlen=0)),
        ("consumer", "a table with offsets", lambda: table_of([chunk])),
    ]


class _Storage:
    """A file with the settings of a broker's, without its indexes and chains."""

    def __init__(self, folder: Path) -> None:
        self._connection = apsw.Connection(str(folder / "steps.db"))
        for pragma in (f"page_size={PAGE_BYTES}", "journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._connection.execute("CREATE TABLE entry (number INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def store(self, batch: bytes) -> None:
        self._connection.execute("INSERT INTO entry (body) VALUES (?)", (batch,))

    def checkpoint_after(self, batch: bytes) -> None:
        """A commit and its checkpoint: the difference to `store` is the checkpoint."""
        self.store(batch)
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def read(self) -> object:
        return self._connection.execute("SELECT body FROM entry WHERE number = 1").fetchone()


if __name__ == "__main__":
    sys.exit(main())
