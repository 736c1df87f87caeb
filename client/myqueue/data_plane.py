"""Append and fetch at a broker: one attempt each, over the caller's connection."""

from dataclasses import dataclass

from myqueue.error_subjects import name_partition
from myqueue.http_connection import HttpConnection, RawResponse
from myqueue.protocol import http_headers
from myqueue.protocol.errors import MyQueueError
from myqueue.routing import RoutingTable
from myqueue.transport import error_of, json_of

CONNECT_S = 2.0


@dataclass(frozen=True, slots=True)
class FetchResponse:
    data: bytes | bytearray | memoryview  # batches, one after the other; empty at the end of the partition
    end_offset: int


def append(
    connection: HttpConnection,
    table: RoutingTable,
    leader: int,
    partition: int,
    head: bytes,
    body: bytes,
    read_s: float,
) -> int:
    """The offset of the batch's first message; raises the error of a failed attempt."""
    try:
        raw = connection.exchange(
            "POST",
            table.path(leader, partition),
            {http_headers.GRANT: table.grant, "Content-Type": http_headers.BATCH_TYPE},
            (head, body),
            connect_s=CONNECT_S,
            read_s=read_s,
        )
        return _base_offset(raw)
    except MyQueueError as error:
        name_partition(error, table.topic, partition, connection.url)
        raise


def _base_offset(raw: RawResponse) -> int:
    answer = json_of(raw)
    if raw.status != 200:
        raise _failure(raw, answer)
    if not isinstance(answer, dict) or not isinstance(answer.get("base_offset"), int):
        raise MyQueueError("HTTP 200 that is no answer of myqueue", outcome="unknown")
    base_offset: int = answer["base_offset"]
    return base_offset


def fetch(
    connection: HttpConnection,
    table: RoutingTable,
    broker_id: int,
    partition: int,
    offset: int,
    *,
    max_bytes: int,
    wait_s: float,
    read_s: float,
) -> FetchResponse:
    path, headers = fetch_request(table, broker_id, partition, offset, max_bytes=max_bytes, wait_s=wait_s)
    try:
        return fetch_response(connection.exchange("GET", path, headers, connect_s=CONNECT_S, read_s=wait_s + read_s))
    except MyQueueError as error:
        name_partition(error, table.topic, partition, connection.url)
        raise


def fetch_request(
    table: RoutingTable, broker_id: int, partition: int, offset: int, *, max_bytes: int, wait_s: float
) -> tuple[str, dict[str, str]]:
    """Path and headers."""
    query = f"?offset={offset}&max_bytes={max_bytes}&wait_ms={int(wait_s * 1000)}"
    headers = {http_headers.GRANT: table.grant, "Accept": http_headers.BATCH_TYPE}
    return table.path(broker_id, partition) + query, headers


def fetch_response(raw: RawResponse) -> FetchResponse:
    """Raises the error of a failed attempt."""
    if raw.status not in (200, 204):
        raise _failure(raw, json_of(raw))
    end_offset = raw.headers.get(http_headers.END_OFFSET, "")
    if not end_offset.isdecimal():
        raise MyQueueError(f"HTTP {raw.status} that is no answer of myqueue")
    return FetchResponse(raw.body, int(end_offset))


def _failure(raw: RawResponse, answer: object) -> MyQueueError:
    if raw.status < 400:
        return MyQueueError(f"HTTP {raw.status} that is no answer of myqueue", outcome="unknown")
    return error_of(raw, answer)
