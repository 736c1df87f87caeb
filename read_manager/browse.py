"""Browsing: messages of a partition from an offset or a time on, without a consumer."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from myqueue.protocol import http_headers, routes
from myqueue.protocol.errors import PartitionNotFound
from myqueue.protocol.internal import TopicRecord
from myqueue.protocol.limits import DEFAULT_FETCH_BYTES, MAX_WAIT_MS
from myqueue.protocol.models import ListMessages
from myqueue.protocol.token import Token
from read_manager.batch_slices import BatchSlice, as_arrow, as_json, run_aside, slice_aside
from read_manager.leader_offsets import LeaderOffsets
from read_manager.long_poll import ClientConnection, LongPolls, with_remaining_wait
from read_manager.memory_budget import MemoryBudget
from read_manager.metadata_cache import MetadataCache, partition_of
from read_manager.replica_fetch import LAGGING_PAUSE_S, Fetched, ReplicaFetcher, fetch_bytes
from service.error_encoding import JSON
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router

MAX_FETCHES = 16  # for one answer


@dataclass(frozen=True, slots=True)
class MessagePage:
    slices: Sequence[BatchSlice]
    next_offset: int
    beginning_offset: int
    end_offset: int

    def json(self) -> bytes:
        body = {
            "status": "success",
            "messages": as_json(self.slices),
            "next_offset": self.next_offset,
            "beginning_offset": self.beginning_offset,
            "end_offset": self.end_offset,
        }
        return json.dumps(body).encode()

    def ndjson(self) -> bytes:
        """A message in each line."""
        return b"".join([json.dumps(message).encode() + b"\n" for message in as_json(self.slices)])

    def arrow(self) -> bytes:
        """Empty when there are no messages."""
        return as_arrow(self.slices) if self.slices else b""


_ENCODERS: dict[str, Callable[[MessagePage], bytes]] = {  # by how they are preferred when a client accepts several
    http_headers.ARROW_TYPE: MessagePage.arrow,
    http_headers.NDJSON_TYPE: MessagePage.ndjson,
    JSON: MessagePage.json,
}


class BrowseHandler:
    def __init__(
        self,
        replicas: ReplicaFetcher,
        offsets: LeaderOffsets,
        topics: MetadataCache,
        long_polls: LongPolls,
        memory: MemoryBudget,
    ) -> None:
        self._replicas = replicas
        self._offsets = offsets
        self._topics = topics
        self._long_polls = long_polls
        self._memory = memory

    def add_routes(self, router: Router) -> None:
        router.add(routes.LIST_MESSAGES, self.list_messages)

    async def list_messages(self, request: HttpRequest) -> HttpResponse:
        query = with_remaining_wait(request.parse_query(ListMessages), request)
        topic, partition_id = request.path_topic(), request.path_id("partition_id", PartitionNotFound)
        kind = next((one for one in _ENCODERS if request.accepts(one)), JSON)
        with ClientConnection(request.client_disconnected) as client:
            page, body = await self._page(topic, partition_id, query, request.session_token(), client, _ENCODERS[kind])
        if kind == JSON:
            return HttpResponse(200, [("content-type", JSON)], body)
        bounds = [
            (http_headers.BEGINNING_OFFSET.lower(), str(page.beginning_offset)),
            (http_headers.END_OFFSET.lower(), str(page.end_offset)),
        ]
        if not body:
            return HttpResponse.empty(bounds)
        return HttpResponse(200, [("content-type", kind), *bounds], body)

    async def _page(
        self,
        name: str,
        partition_id: int,
        request: ListMessages,
        token: Token | None,
        client: ClientConnection,
        encode: Callable[[MessagePage], bytes],
    ) -> tuple[MessagePage, bytes]:
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + min(request.wait_ms, MAX_WAIT_MS) / 1000
        topic = await self._topics.topic(name, token, or_kept=True)
        partition_of(topic, partition_id)
        offset = request.offset
        if offset is None:
            offset = await self._offset_at(topic, partition_id, request.timestamp or 0)
        last = False
        while True:
            async with self._memory.reserved(max(request.max_bytes, DEFAULT_FETCH_BYTES)):
                slices, fetched = await self._read(topic, partition_id, offset, request.limit, request.max_bytes)
                if slices or last or now_s() >= deadline_s:
                    next_offset = slices[-1].next_offset if slices else offset
                    page = MessagePage(slices, next_offset, fetched.beginning_offset, fetched.end_offset)
                    return page, await run_aside(sum(each.bytes for each in slices), partial(encode, page))
            if fetched.end_offset > offset:
                await asyncio.sleep(LAGGING_PAUSE_S)
            last = not await self._long_polls.wait_beyond(topic, {partition_id: offset}, deadline_s, client)

    async def _read(
        self, topic: TopicRecord, partition_id: int, offset: int, limit: int, max_bytes: int
    ) -> tuple[list[BatchSlice], Fetched]:
        """Fetches until the page is full: how many bytes hold so many messages is known only afterwards."""
        slices: list[BatchSlice] = []
        for _ in range(MAX_FETCHES):
            fetched = await self._replicas.fetch(topic, partition_id, offset, fetch_bytes(limit, max_bytes))
            found, full = await slice_aside(fetched.items, offset, limit, max_bytes, need_one=not slices)
            slices += found
            if full or not found or found[-1].next_offset >= fetched.end_offset:
                break
            offset = found[-1].next_offset
            limit -= sum(each.rows.num_rows for each in found)
            max_bytes -= sum(each.bytes for each in found)
        return slices, fetched

    async def _offset_at(self, topic: TopicRecord, partition_id: int, timestamp: int) -> int:
        bounds = (await self._offsets.require(topic, [partition_id], timestamp=timestamp))[partition_id]
        offset = bounds["offset_at"]
        return bounds["end_offset"] if offset is None else offset
