"""Messages of a partition for the log API, from an offset or a time on."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from myqueue.protocol.internal import TopicRecord
from myqueue.protocol.limits import DEFAULT_FETCH_BYTES, MAX_UNCOMPRESSED_BYTES, MAX_WAIT_MS
from myqueue.protocol.models import ListMessages
from myqueue.protocol.token import Token
from read_manager import stored_messages
from read_manager.client import Client
from read_manager.leader_offsets import LeaderOffsets
from read_manager.replicas import Fetched, Replicas
from read_manager.room import Room
from read_manager.stored_messages import Piece
from read_manager.topics import Topics, partition_of
from read_manager.watches import Watches

R = TypeVar("R")

INLINE_BYTES = 32 << 10  # what takes longer to decode would hold up the event loop
LEAST_FETCH_BYTES = 64 << 10
USUAL_STORED_BYTES = 1 << 10
MAX_FETCHES = 16  # for one answer
LAGGING_PAUSE_S = 0.02


Encode = Callable[["Listed"], bytes]


@dataclass(frozen=True, slots=True)
class Listed:
    pieces: Sequence[Piece]
    next_offset: int
    beginning_offset: int
    end_offset: int

    def json(self) -> bytes:
        body = {
            "status": "success",
            "messages": stored_messages.as_json(self.pieces),
            "next_offset": self.next_offset,
            "beginning_offset": self.beginning_offset,
            "end_offset": self.end_offset,
        }
        return json.dumps(body).encode()

    def arrow(self) -> bytes:
        """Nothing, when there are no messages."""
        return stored_messages.as_arrow(self.pieces) if self.pieces else b""


class Messages:
    def __init__(
        self, replicas: Replicas, offsets: LeaderOffsets, topics: Topics, watches: Watches, room: Room
    ) -> None:
        self._replicas = replicas
        self._offsets = offsets
        self._topics = topics
        self._watches = watches
        self._room = room

    async def listed(
        self,
        name: str,
        partition_id: int,
        request: ListMessages,
        token: Token | None,
        client: Client,
        encode: Encode,
    ) -> tuple[Listed, bytes]:
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + min(request.wait_ms, MAX_WAIT_MS) / 1000
        topic = await self._topics.topic(name, token)
        partition_of(topic, partition_id)
        offset = request.offset
        if offset is None:
            offset = await self._offset_at(topic, partition_id, request.timestamp or 0)
        last = False
        while True:
            async with self._room.taken(max(request.max_bytes, DEFAULT_FETCH_BYTES)):
                pieces, fetched = await self._read(topic, partition_id, offset, request.limit, request.max_bytes)
                if pieces or last or now_s() >= deadline_s:
                    next_offset = pieces[-1].next_offset if pieces else offset
                    listed = Listed(pieces, next_offset, fetched.beginning_offset, fetched.end_offset)
                    return listed, await aside(sum(piece.bytes for piece in pieces), partial(encode, listed))
            if fetched.end_offset > offset:
                await asyncio.sleep(LAGGING_PAUSE_S)  # the replica that answered does not have it yet
            last = not await self._watches.grown(topic, {partition_id: offset}, deadline_s, client)

    async def _read(
        self, topic: TopicRecord, partition_id: int, offset: int, limit: int, max_bytes: int
    ) -> tuple[list[Piece], Fetched]:
        """How much has to be fetched for so many messages shows only when they are there."""
        pieces: list[Piece] = []
        for _ in range(MAX_FETCHES):
            fetched = await self._replicas.fetch(topic, partition_id, offset, stored_bytes(limit, max_bytes))
            found, full = await cut(fetched, offset, limit, max_bytes, need_one=not pieces)
            pieces += found
            if full or not found or found[-1].next_offset >= fetched.end_offset:
                break
            offset = found[-1].next_offset
            limit -= sum(piece.rows.num_rows for piece in found)
            max_bytes -= sum(piece.bytes for piece in found)
        return pieces, fetched

    async def _offset_at(self, topic: TopicRecord, partition_id: int, timestamp: int) -> int:
        said = (await self._offsets.require(topic, [partition_id], timestamp=timestamp))[partition_id]
        offset = said["offset_at"]
        return said["end_offset"] if offset is None else offset


async def cut(fetched: Fetched, offset: int, limit: int, max_bytes: int, *, need_one: bool) -> tuple[list[Piece], bool]:
    job = partial(stored_messages.cut, fetched.items, offset, limit, max_bytes, need_one=need_one)
    size = MAX_UNCOMPRESSED_BYTES if stored_messages.has_compressed(fetched.items) else len(fetched.items)
    return await aside(size, job)


async def aside(size: int, job: Callable[[], R]) -> R:
    """What has much to do runs in a thread."""
    return job() if size <= INLINE_BYTES else await asyncio.to_thread(job)


def stored_bytes(limit: int, max_bytes: int) -> int:
    """What to fetch. A batch of one small message takes more room in the log than its key and value, which are what
    the caller limits; and few messages need no large answer."""
    return min(max(max_bytes, DEFAULT_FETCH_BYTES), LEAST_FETCH_BYTES + limit * USUAL_STORED_BYTES)
