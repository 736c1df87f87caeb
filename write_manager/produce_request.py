"""The messages in the body of a request of the log API: JSON, a line of JSON for each, or an Arrow stream."""

import time
from collections.abc import Iterator

import pyarrow as pa
from pydantic import ValidationError

from myqueue.protocol import arrow_message, limits
from myqueue.protocol.batch import SCHEMA, Message
from myqueue.protocol.errors import InvalidRequest, TooLarge
from myqueue.protocol.models import MAX_OFFSET, AppendMessages, NewMessage
from service.error_encoding import describe
from write_manager.accumulator import PendingMessage, pending_message

_COLUMNS = {
    "value": SCHEMA.field("value").type,
    "key": SCHEMA.field("key").type,
    "timestamp": pa.int64(),
    "headers": SCHEMA.field("headers").type,
    "partition_id": pa.int32(),
    "partition": pa.int32(),  # its older name
}
_TWO_NAMES = "partition is the older name of partition_id: give one of them"


def from_json(body: bytes) -> list[PendingMessage]:
    try:
        request = AppendMessages.model_validate_json(body)
    except ValidationError as error:
        raise InvalidRequest(describe(error)) from None
    now_ms = time.time_ns() // 1_000_000
    return [_pending(f"messages.{place}", message, now_ms) for place, message in enumerate(request.messages)]


def from_ndjson(body: bytes) -> list[PendingMessage]:
    """Empty lines count as lines and are no messages."""
    now_ms = time.time_ns() // 1_000_000
    messages: list[PendingMessage] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line.strip():
            continue
        _check_count(len(messages) + 1)
        try:
            messages.append(_pending(f"line {number}", NewMessage.model_validate_json(line), now_ms))
        except ValidationError as error:
            raise InvalidRequest(f"line {number}: {describe(error)}") from None
        except TooLarge as error:
            error.reword(f"line {number}: {error.message}")
            raise
    if not messages:
        raise InvalidRequest("messages: there must be at least one line")
    return messages


def _pending(place: str, message: NewMessage, now_ms: int) -> PendingMessage:
    if message.partition is not None and message.partition_id is not None:
        raise InvalidRequest(f"{place}: {_TWO_NAMES}")
    partition_id = message.partition if message.partition_id is None else message.partition_id
    timestamp = now_ms if message.timestamp is None else message.timestamp
    headers = tuple((header.key, header.value) for header in message.headers)
    return pending_message(Message(message.value, message.key, timestamp, headers), partition_id)


def from_arrow(body: bytes) -> list[PendingMessage]:
    try:
        messages = [message for batch in _batches(body) for message in _messages(batch)]
    except (pa.ArrowException, EOFError, OSError, ValueError) as error:
        raise InvalidRequest(f"the body is not an Arrow stream of messages: {error}") from error
    if not messages:
        raise InvalidRequest("messages: there must be at least one")
    return messages


def _check_count(count: int) -> None:
    if count > limits.MAX_POSTED_MESSAGES:
        raise TooLarge(f"{count} messages in one request, the limit is {limits.MAX_POSTED_MESSAGES}")


def _batches(body: bytes) -> Iterator[pa.RecordBatch]:
    """Checks each batch before it is decoded: Arrow reserves the memory that a compressed one claims to need."""
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(body))
    first = next(reader, None)
    if first is None:
        raise InvalidRequest("the body is empty")
    schema = pa.ipc.read_schema(first)
    _check_schema(schema)
    rows = decoded_bytes = 0
    for message in reader:
        if message.type != "record batch":
            raise InvalidRequest(f"an Arrow {message.type} message is not expected here")
        claims = arrow_message.claims_of(message.serialize().to_pybytes())
        rows += claims.rows
        decoded_bytes += claims.decoded_bytes
        _check_count(rows)
        if decoded_bytes > limits.MAX_UNCOMPRESSED_BYTES:
            raise TooLarge(f"the messages have more than {limits.MAX_UNCOMPRESSED_BYTES} bytes before compression")
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        yield batch


def _check_schema(schema: pa.Schema) -> None:
    unknown = sorted(set(schema.names) - _COLUMNS.keys())
    if unknown:
        raise InvalidRequest(f"{unknown[0]}: unknown column; known are {', '.join(_COLUMNS)}")
    if len(set(schema.names)) != len(schema.names):
        raise InvalidRequest("a column is there more than once")
    if "value" not in schema.names:
        raise InvalidRequest("value: column is missing")
    if {"partition_id", "partition"} <= set(schema.names):
        raise InvalidRequest(_TWO_NAMES)
    for field in schema:
        if pa.types.is_dictionary(field.type):
            raise InvalidRequest(f"{field.name}: dictionaries are not supported")


def _messages(batch: pa.RecordBatch) -> list[PendingMessage]:
    now_ms = time.time_ns() // 1_000_000
    columns = {name: _column(batch, name) for name in _COLUMNS}
    if None in columns["value"]:
        raise InvalidRequest("value: must not be null")
    found = []
    for value, key, timestamp, headers, partition_id, older in zip(*(columns[name] for name in _COLUMNS), strict=True):
        partition = older if partition_id is None else partition_id
        if not 0 <= (timestamp or 0) <= MAX_OFFSET or (partition or 0) < 0:
            raise InvalidRequest("timestamp and partition_id must not be negative")
        if len(headers or ()) > limits.MAX_HEADERS:
            raise InvalidRequest(f"headers: a message may have at most {limits.MAX_HEADERS}")
        pairs = tuple((pair["key"], pair["value"]) for pair in headers or ())
        if any(name is None or len(name) > limits.MAX_HEADER_KEY_CHARS for name, _ in pairs):
            raise InvalidRequest(f"headers: a key must have at most {limits.MAX_HEADER_KEY_CHARS} characters")
        message = Message(value, key, now_ms if timestamp is None else timestamp, pairs)
        found.append(pending_message(message, partition))
    return found


def _column(batch: pa.RecordBatch, name: str) -> list[object]:
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    values: list[object] = batch.column(name).cast(_COLUMNS[name]).to_pylist()
    return values
