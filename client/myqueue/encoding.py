"""Messages as the body of a batch: whole columns at a time, nothing is done for each message."""

import pyarrow as pa
from crc32c import crc32c

from myqueue.batcher import Batch, Headers
from myqueue.protocol.batch import SCHEMA, encode_record_batch, no_headers

_KEY, _VALUE, _TIMESTAMP, _HEADERS = (SCHEMA.field(name).type for name in ("key", "value", "timestamp", "headers"))


def encode(batch: Batch, codec: int) -> tuple[int, bytes]:
    """The body's CRC and the body."""
    count = len(batch.values)
    columns = [
        pa.nulls(count, _KEY) if batch.keys is None else pa.array(batch.keys, _KEY),
        pa.array(batch.values, _VALUE),
        pa.array(batch.timestamps, _TIMESTAMP),
        no_headers(count)
        if batch.headers is None
        else pa.array([_pairs(headers) for headers in batch.headers], _HEADERS),
    ]
    body = encode_record_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), codec)
    return crc32c(body), body


def _pairs(headers: Headers | None) -> list[dict[str, str | bytes | None]] | None:
    return [{"key": key, "value": value} for key, value in headers] if headers else None
