"""`python -m benchmarks.steps`: what the steps of one batch cost alone, in one thread, without queues or network."""

import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pyarrow as pa
from crc32c import crc32c
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from rich.console import Console
from rich.table import Table

from benchmarks.commits import SIZES, commit_ratio
from benchmarks.store import BenchStore, opened_store
from benchmarks.table import size_text
from benchmarks.workload import values_of
from myqueue.decoding import Messages, chunks_in, table_of
from myqueue.protocol.batch import SCHEMA, decode_header, encode_record_batch, header_for, no_headers, validate

ROUNDS = 100
COMMITS_S = 3.0
Step = tuple[str, str, Callable[[], object]]


def main() -> int:
    console = Console()
    for size, count in ((100, 8_600), (100, 16), (1024, 1_000)):
        with tempfile.TemporaryDirectory(prefix="myqueue-steps-") as folder, opened_store(Path(folder) / "s") as store:
            table = Table(title=f"a batch of {count} messages of {size} bytes", title_justify="left")
            for heading in ("where", "step"):
                table.add_column(heading)
            for heading in ("µs a batch", "ns a message"):
                table.add_column(heading, justify="right")
            for where, name, step in steps(size, count, store):
                seconds = best_of(step)
                table.add_row(where, name, f"{seconds * 1e6:,.0f}", f"{seconds / count * 1e9:,.0f}")
            console.print(table)
    console.print(commits())
    return 0


def commits() -> Table:
    table = Table(title="a commit, in turn with pwritev and fdatasync of the same bytes", title_justify="left")
    table.add_column("size")
    for heading in ("storage, µs", "plain, µs", "ratio"):
        table.add_column(heading, justify="right")
    for size in SIZES:
        with tempfile.TemporaryDirectory(prefix="myqueue-steps-") as folder, opened_store(Path(folder) / "s") as store:
            cost = commit_ratio(store.commit, size, Path(folder), COMMITS_S)
        table.add_row(size_text(size), f"{cost.store_s * 1e6:,.0f}", f"{cost.plain_s * 1e6:,.0f}", f"{cost.ratio:.2f}")
    return table


def best_of(step: Callable[[], object]) -> float:
    """Seconds of the best round, which nothing disturbed."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - began)
    return best


def steps(size: int, count: int, store: BenchStore) -> list[Step]:
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
    (chunk,) = chunks_in(batch, 0, 0)
    return [
        ("client", "values into Arrow columns", record_batch),
        ("client", "Arrow body as bytes", lambda: encode_record_batch(rows)),
        ("everybody", "CRC32C of the body", lambda: crc32c(body)),
        ("leader", "full validation", lambda: validate(decode_header(batch), memoryview(batch)[64:])),
        ("brokers", "MAC for one peer", lambda: cipher.encrypt(next(nonces).to_bytes(12, "big"), b"", batch)),
        ("brokers", "a commit, with its sync", lambda: store.commit(batch)),
        ("brokers", "read from the file", store.read),
        ("consumer", "check and decode", lambda: list(chunks_in(batch, 0, 0))),
        ("consumer", "every message an object", lambda: deque(Messages("t", chunk).iterator, maxlen=0)),
        ("consumer", "a table with offsets", lambda: table_of([chunk])),
    ]


if __name__ == "__main__":
    sys.exit(main())
