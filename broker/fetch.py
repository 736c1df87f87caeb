"""Fetch: from memory when it is there, else the file is read on a thread; at the end a long poll waits."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from broker.data_plane_access import DataPlaneAccess
from broker.long_poll import LongPolls
from broker.metrics import Metrics
from broker.partitions import Partitions
from broker.replica import Replica
from broker.request_values import check_known, number_of, partition_of
from broker.storage.entry import Entry
from myqueue.protocol import http_headers, internal
from myqueue.protocol.batch import count_of
from myqueue.protocol.grant import READ
from myqueue.protocol.limits import DEFAULT_FETCH_BYTES, MAX_FETCH_BYTES, MAX_WAIT_MS
from myqueue.protocol.models import MAX_OFFSET
from myqueue.protocol.routes import FETCH_BATCHES
from service.http_messages import Headers, HttpRequest, HttpResponse
from service.router import Router

MAX_LIMIT = (1 << 31) - 1
_COPIED_BYTES = 4 << 10  # parts that are smaller on average are joined: sending each on its own costs more than a copy


class FetchQuery(NamedTuple):
    offset: int
    max_bytes: int
    wait_ms: int


class Fetched(NamedTuple):
    """No entries at the end. Both offsets are those of the replica when the fetch was done."""

    entries: Sequence[Entry]
    start_offset: int
    end_offset: int


class FetchRoutes:
    def __init__(
        self,
        partitions: Partitions,
        access: DataPlaneAccess,
        readers: Executor,
        long_polls: LongPolls,
        metrics: Metrics,
    ) -> None:
        self._partitions = partitions
        self._access = access
        self._readers = readers
        self._long_polls = long_polls
        self._metrics = metrics

    def add_to(self, internal_router: Router, data_plane: Router) -> None:
        data_plane.add(FETCH_BATCHES, self.fetch_batches)
        internal_router.add(internal.BATCHES, self.fetch_with_dedup_records)
        internal_router.add(internal.MESSAGES, self.fetch_messages)

    async def fetch_batches(self, request: HttpRequest) -> HttpResponse:
        replica = self._access.replica(request, READ)
        fetched = await self._fetch(replica, fetch_query(request.query()))
        if not fetched.entries:
            return HttpResponse.empty(_offset_headers(fetched))
        return self._response([part for entry in fetched.entries for part in (entry.head, entry.body)], fetched)

    async def fetch_with_dedup_records(self, request: HttpRequest) -> HttpResponse:
        query = fetch_query(request.query())
        fetched = await self._fetch(self._partitions.get(*partition_of(request)), query)
        if not fetched.entries:
            return HttpResponse.empty(_offset_headers(fetched))
        parts: list[bytes | memoryview] = []
        for entry in fetched.entries:
            sizes = internal.FETCH_ITEM.pack(len(entry.head) + len(entry.body), len(entry.dedup_records))
            parts += (sizes, entry.head, entry.body, entry.dedup_records)
        return self._response(parts, fetched)

    async def _fetch(self, replica: Replica, query: FetchQuery) -> Fetched:
        """Whole batches from the one on that holds the offset."""
        offset, max_bytes, wait_ms = query
        if not replica.has(offset) and wait_ms:
            await self._long_polls.wait([(replica.waiters, offset)], wait_ms / 1000)
        entries: Sequence[Entry] = ()
        if replica.has(offset):
            entries = replica.tail_batches(offset, max_bytes)
            if not entries:
                loop = asyncio.get_running_loop()
                entries = await loop.run_in_executor(self._readers, replica.stored_batches, offset, max_bytes)
        view = replica.view
        return Fetched(entries, view.start_offset, view.end_offset)

    async def fetch_messages(self, request: HttpRequest) -> HttpResponse:
        """At most `limit` messages of one batch; 204 at the end."""
        offset, limit = messages_query(request.query())
        replica = self._partitions.get(*partition_of(request))
        if not replica.has(offset):
            return HttpResponse.empty()
        found = replica.cached_messages(offset, limit)
        if found is None:
            found = await asyncio.get_running_loop().run_in_executor(self._readers, replica.messages, offset, limit)
        if found is None:
            return HttpResponse.empty()
        self._count(len(found), count_of(found))
        return HttpResponse(200, [("content-type", http_headers.BATCH_TYPE)], found)

    def _response(self, parts: list[bytes | memoryview], fetched: Fetched) -> HttpResponse:
        size_bytes = sum(map(len, parts))
        self._count(size_bytes, sum(entry.count for entry in fetched.entries))
        body = parts if size_bytes >= len(parts) * _COPIED_BYTES else b"".join(parts)
        return HttpResponse(200, [("content-type", http_headers.BATCH_TYPE), *_offset_headers(fetched)], body)

    def _count(self, size_bytes: int, messages: int) -> None:
        self._metrics.fetches.inc()
        self._metrics.fetched_bytes.inc(size_bytes)
        self._metrics.fetched_messages.inc(messages)


def fetch_query(values: dict[str, str]) -> FetchQuery:
    check_known(values, ("offset", "max_bytes", "wait_ms"))
    return FetchQuery(
        number_of(values, "offset", None, 0, MAX_OFFSET),
        number_of(values, "max_bytes", DEFAULT_FETCH_BYTES, 1, MAX_FETCH_BYTES),
        min(number_of(values, "wait_ms", 0, 0, MAX_OFFSET), MAX_WAIT_MS),
    )


def messages_query(values: dict[str, str]) -> tuple[int, int]:
    """Offset and limit."""
    check_known(values, ("offset", "limit"))
    return number_of(values, "offset", None, 0, MAX_OFFSET), number_of(values, "limit", 1, 1, MAX_LIMIT)


def _offset_headers(fetched: Fetched) -> Headers:
    return [
        (http_headers.END_OFFSET.lower(), str(fetched.end_offset)),
        (http_headers.BEGINNING_OFFSET.lower(), str(fetched.start_offset)),
    ]
