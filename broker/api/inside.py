"""What managers ask for often: appends, fetches, ends of partitions. Answered on the event loop."""

import asyncio
import time
from uuid import UUID

from broker.api.data import offset_headers
from broker.api.requests import AskOffsets, AskWait, Name, fetch_of, messages_of, partition_id_of, topic_id_of
from broker.fetching import Fetching
from broker.intake import Intake
from broker.partitions import Partitions
from broker.reading import Since
from broker.replica import Replica
from broker.waiting import Waiters, Waiting
from myqueue.protocol import http_headers, internal
from myqueue.protocol.errors import (
    InvalidRequest,
    MyQueueError,
    PartitionNotFound,
    TooLarge,
    Unavailable,
    UnsupportedMediaType,
)
from myqueue.protocol.internal import AppendAnswer, AppendFailure, Grown, Offsets
from myqueue.protocol.limits import MAX_WAIT_MS
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router

_MAX_APPENDS = 1024
_NOT_HELD = -1


class Inside:
    def __init__(
        self,
        partitions: Partitions,
        intake: Intake,
        fetching: Fetching,
        waiting: Waiting,
        *,
        read_timeout_s: float,
    ) -> None:
        self._partitions = partitions
        self._intake = intake
        self._fetching = fetching
        self._waiting = waiting
        self._read_timeout_s = read_timeout_s

    def add_to(self, router: Router) -> None:
        router.add(internal.APPEND, self.append)
        router.add(internal.BATCHES, self.fetch)
        router.add(internal.MESSAGES, self.dequeue)
        router.add(internal.OFFSETS, self.size)
        router.add(internal.WAIT, self.wait)

    # Appends

    async def append(self, request: HttpRequest) -> HttpResponse:
        """Batches for any number of partitions; each is answered as if it had come alone."""
        if request.content_type != http_headers.BATCH_TYPE:
            raise UnsupportedMediaType(f"Content-Type must be {http_headers.BATCH_TYPE}")
        items = _items(request.body)
        answers = await asyncio.gather(*(self._append_one(item, request.request_id) for item in items))
        return HttpResponse.json({"status": "success", "answers": answers})

    async def _append_one(self, data: bytes, request_id: str | None) -> AppendAnswer | AppendFailure:
        try:
            return await self._intake.append_marked(self._partitions.get, data)
        except MyQueueError as error:
            return {"error": error.to_body(request_id)}

    # Fetches

    async def fetch(self, request: HttpRequest) -> HttpResponse:
        """Whole batches with their marks."""
        asked = fetch_of(request.query())
        fetched = await self._fetching.batches(self._replica(request), *asked)
        if not fetched.entries:
            return HttpResponse.empty(offset_headers(fetched))
        parts: list[bytes | memoryview] = []
        for entry in fetched.entries:
            sizes = internal.FETCH_ITEM.pack(len(entry.head) + len(entry.body), len(entry.marks))
            parts += (sizes, entry.head, entry.body, entry.marks)
        return HttpResponse(200, [("content-type", http_headers.BATCH_TYPE), *offset_headers(fetched)], b"".join(parts))

    async def dequeue(self, request: HttpRequest) -> HttpResponse:
        offset, limit = messages_of(request.query())
        found = await self._fetching.messages(self._replica(request), offset, limit)
        if found is None:
            return HttpResponse.empty()
        return HttpResponse(200, [("content-type", http_headers.BATCH_TYPE)], found)

    # Ends

    async def size(self, request: HttpRequest) -> HttpResponse:
        """All partitions are asked for at once; the leader alone may say where one ends."""
        asked = request.parse_json(AskOffsets)
        deadline_s = time.monotonic() + self._read_timeout_s
        found = await asyncio.gather(*(self._offsets(name, asked.timestamp, deadline_s) for name in asked.partitions))
        return HttpResponse.json({"status": "success", "offsets": found})

    async def _offsets(self, name: Name, timestamp: int | None, deadline_s: float) -> Offsets | None:
        loop = asyncio.get_running_loop()
        try:
            replica = self._partitions.get(name.topic_id, name.partition_id)
            end = await replica.confirm_end(deadline_s - time.monotonic())
            if end is None:
                return None
            offset_at = None
            if timestamp is not None:
                offset_at = await loop.run_in_executor(self._fetching.pool, replica.offset_at, timestamp)
            since = Since(None, None)
            if name.since is not None:
                since = await loop.run_in_executor(self._fetching.pool, replica.since, name.since)
        except (PartitionNotFound, Unavailable):
            return None  # a damaged partition must not hide what the others say
        return {
            "topic_id": str(replica.topic_id),
            "partition_id": replica.partition_id,
            "leader": replica.me.broker_id,
            "term": replica.view.term,
            "beginning_offset": end.start_offset,
            "end_offset": end.end_offset,
            "size_bytes": replica.bounds().size_bytes,
            "offset_at": offset_at,
            "bytes_since": since.size_bytes,
            "oldest_since": since.oldest,
        }

    async def wait(self, request: HttpRequest) -> HttpResponse:
        """For partitions of any number to grow: those that have, as soon as there is one."""
        asked = request.parse_json(AskWait)
        names = [(wanted.topic_id, wanted.partition_id, wanted.offset) for wanted in asked.partitions]
        grown = self._grown(names)
        if not grown:
            places: list[tuple[Waiters, int]] = [
                (self._partitions.get(topic_id, partition_id).waiters, offset)
                for topic_id, partition_id, offset in names
            ]
            await self._waiting.wait(places, min(asked.wait_ms, MAX_WAIT_MS) / 1000)
            grown = self._grown(names)
        return HttpResponse.json({"status": "success", "grown": grown})

    def _grown(self, names: list[tuple[UUID, int, int]]) -> list[Grown]:
        found: list[Grown] = []
        for topic_id, partition_id, offset in names:
            try:
                replica = self._partitions.get(topic_id, partition_id)
                replica.check_served()
                end_offset = replica.view.end_offset
            except (PartitionNotFound, Unavailable):
                end_offset = _NOT_HELD
            if end_offset == _NOT_HELD or end_offset > offset:
                found.append({"topic_id": str(topic_id), "partition_id": partition_id, "end_offset": end_offset})
        return found

    def _replica(self, request: HttpRequest) -> Replica:
        values = request.path_values
        return self._partitions.get(topic_id_of(values["topic_id"]), partition_id_of(values["partition_id"]))


def _items(body: bytes) -> list[bytes]:
    """The batches with their marks, each behind its size."""
    view = memoryview(body)
    items: list[bytes] = []
    at = 0
    while at < len(view):
        if len(items) == _MAX_APPENDS:
            raise TooLarge(f"at most {_MAX_APPENDS} batches at a time")
        start = at + internal.APPEND_ITEM.size
        if start > len(view):
            raise InvalidRequest("the last batch is cut off")
        at = start + internal.APPEND_ITEM.unpack_from(view, at)[0]
        if at > len(view):
            raise InvalidRequest("the last batch is cut off")
        items.append(bytes(view[start:at]))
    return items
