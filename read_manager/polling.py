"""Messages for the members of a consumer: leases from the write manager, batches from the brokers."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from myqueue.protocol.errors import MyQueueError, OffsetOutOfRange, Unavailable
from myqueue.protocol.internal import LeaseAnswer, LeaseRequest, TopicRecord
from myqueue.protocol.limits import MAX_WAIT_MS
from myqueue.protocol.models import Poll
from read_manager import stored_messages
from read_manager.client import Client
from read_manager.fetching import LAGGING_PAUSE_S, aside, cut, stored_bytes
from read_manager.replicas import Fetched, Replicas
from read_manager.room import Room
from read_manager.stored_messages import Piece
from read_manager.topics import Topics
from read_manager.watches import Watches
from read_manager.write_manager_calls import WriteManagerAsks

TOGETHER = 4  # partitions that are read at the same time
RENEWALS_PER_LEASE = 3
USABLE = 0.8  # of a lease: its end must not come while an answer is on its way


class Polling:
    """Nothing is kept here between two polls."""

    def __init__(
        self, write_manager: WriteManagerAsks, replicas: Replicas, topics: Topics, watches: Watches, room: Room
    ) -> None:
        self._write_manager = write_manager
        self._replicas = replicas
        self._topics = topics
        self._watches = watches
        self._room = room
        self._turn = 0

    async def poll(self, consumer_id: int, request: Poll, client: Client) -> bytes:
        """Waits while there is nothing to tell: no message, and no change of the leases."""
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + min(request.wait_ms, MAX_WAIT_MS) / 1000
        asked: LeaseRequest = {"member": request.member, "released": request.released, "leave": request.leave}
        held_s = now_s()
        leased = first = await self._write_manager.lease(consumer_id, asked)
        if request.leave or not request.max_messages:
            return _polled(leased, [])
        topic = await self._topic(leased)
        begins: dict[int, int] = {}  # where partitions begin that retention has cut below their cursors
        while True:
            wanted = _wanted(leased, request, begins)
            async with self._room.taken(TOGETHER * stored_bytes(request.max_messages, request.max_bytes)):
                until_s = held_s + leased["lease_ms"] / 1000 * USABLE
                pieces = await self._read(topic, wanted, request, begins, until_s)
                over = now_s() >= deadline_s or self._watches.stopping or client.left
                if pieces or over or _terms(leased) != _terms(first):
                    return await aside(sum(piece.bytes for piece in pieces), partial(_polled, leased, pieces))
            renewal_s = now_s() + leased["lease_ms"] / 1000 / RENEWALS_PER_LEASE
            wanted = {p: max(offset, begins.get(p, 0)) for p, offset in wanted.items()}
            if any(end > wanted[p] for p, end in self._watches.known(topic, wanted).items()):
                await asyncio.sleep(LAGGING_PAUSE_S)  # a replica that answered does not have it yet
            elif wanted:
                await self._watches.grown(topic, wanted, min(deadline_s, renewal_s), client)
            else:
                await self._watches.pause(min(deadline_s, renewal_s), client)
            if client.left:
                return _polled(leased, [])  # its leases must not outlive it
            held_s = now_s()
            leased = await self._write_manager.lease(consumer_id, {**asked, "released": []})

    async def _topic(self, leased: LeaseAnswer) -> TopicRecord:
        topic = await self._topics.topic(leased["topic"])
        if topic["topic_id"] != leased["topic_id"]:
            topic = await self._topics.topic(leased["topic"], fresh=True)  # it was made anew just now
        return topic

    async def _read(
        self, topic: TopicRecord, wanted: Mapping[int, int], request: Poll, begins: dict[int, int], until_s: float
    ) -> list[Piece]:
        """A few partitions at a time until the answer is full, each poll beginning with another one.

        Not after `until_s`: what is read without a lease may be another member's.
        """
        self._turn += 1
        order = sorted(wanted)
        order = [order[(self._turn + at) % len(order)] for at in range(len(order))]
        pieces: list[Piece] = []
        failures: list[MyQueueError] = []
        limit, max_bytes = request.max_messages, request.max_bytes
        for at in range(0, len(order), TOGETHER):
            some = order[at : at + TOGETHER]
            size = stored_bytes(limit, max_bytes)
            try:
                async with asyncio.timeout_at(until_s):
                    fetched = await asyncio.gather(*(self._fetch(topic, p, wanted[p], size, begins) for p in some))
            except TimeoutError:
                return pieces
            for p, answer in zip(some, fetched, strict=True):
                if isinstance(answer, MyQueueError):
                    failures.append(answer)
                    continue
                offset = max(wanted[p], begins.get(p, 0))
                found, full = await cut(answer, offset, limit, max_bytes, need_one=not pieces)
                pieces += found
                limit -= sum(piece.rows.num_rows for piece in found)
                max_bytes -= sum(piece.bytes for piece in found)
                if full or max_bytes <= 0:
                    return pieces
        if failures and len(failures) == len(order):
            raise failures[0]
        return pieces

    async def _fetch(
        self, topic: TopicRecord, partition_id: int, offset: int, max_bytes: int, begins: dict[int, int]
    ) -> Fetched | MyQueueError:
        """A partition that cannot be read right now must not keep the others from being read."""
        try:
            try:
                return await self._replicas.fetch(topic, partition_id, offset, max_bytes)
            except OffsetOutOfRange as error:
                # Retention was faster than the consumer: it goes on with what is still stored.
                begins[partition_id] = int(error.details["beginning_offset"])
                return await self._replicas.fetch(topic, partition_id, begins[partition_id], max_bytes)
        except (Unavailable, OffsetOutOfRange) as error:
            return error


def _polled(leased: LeaseAnswer, pieces: Sequence[Piece]) -> bytes:
    return json.dumps({**leased, "messages": stored_messages.as_json(pieces)}).encode()


def _wanted(leased: LeaseAnswer, request: Poll, begins: Mapping[int, int]) -> dict[int, int]:
    """Where to read on, of the partitions that this member is to read."""
    positions = {position.partition_id: position.offset for position in request.positions}
    return {
        p: max(lease["cursor"], positions.get(p, 0), begins.get(p, 0))
        for lease in leased["leases"]
        if not lease["revoking"]
        for p in (lease["partition_id"],)
    }


def _terms(leased: LeaseAnswer) -> list[tuple[Any, ...]]:
    return sorted((lease["partition_id"], lease["generation"], lease["revoking"]) for lease in leased["leases"])
