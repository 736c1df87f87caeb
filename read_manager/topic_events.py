"""Topic events: the messages of a topic as Server-Sent Events, from any position on, as they come.

A stream holds its next offset in every partition and nothing else. It waits with the long polls of its topic, so that
a thousand streams wait with one call at each broker. What the client has to say to go on elsewhere is in every event.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass

from myqueue.protocol import http_headers, routes
from myqueue.protocol.errors import (
    ConsumerNotFound,
    OffsetOutOfRange,
    PartitionNotFound,
    PastEnd,
    TopicNotFound,
    Unavailable,
)
from myqueue.protocol.event_models import EndEvent, GapEvent, TopicEvents
from myqueue.protocol.event_position import EventPosition, topic_tag
from myqueue.protocol.internal import TopicRecord
from myqueue.protocol.token import Token
from read_manager.leader_offsets import LeaderOffsets
from read_manager.long_poll import LongPolls
from read_manager.memory_budget import MemoryBudget
from read_manager.metadata import Metadata
from read_manager.metadata_cache import MetadataCache, partition_of
from read_manager.replica_fetch import LAGGING_PAUSE_S
from read_manager.shared_reads import EncodedPage, SharedReads
from read_manager.write_manager_client import AsyncWriteManagerClient
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router
from service.server_sent_events import KEEP_ALIVE, KEEP_ALIVE_S, encode_event, encode_start, event_stream

CONCURRENT_STARTS = 32  # a thousand streams that come back at once would time out in the queue for the brokers
CONCURRENT_READS = 4  # partitions that one stream reads at the same time
READ_WAIT_S = 0.25  # a partition that cannot be read does not keep the others waiting for longer
PAST_END_WAIT_S = 2.0  # a leader that was just elected may know less than what was read before
LARGE_PAGE_BYTES = 256 << 10
LARGE_PAGES_BYTES = 64 << 20  # that may wait for slow clients, over all streams of the process


@dataclass(slots=True)
class _StreamPosition:
    """The next offset of each partition, which are consecutive ones."""

    topic_id: str
    offsets: dict[int, int]

    @property
    def event_id(self) -> bytes:
        return str(EventPosition(topic_tag(self.topic_id), min(self.offsets), list(self.offsets.values()))).encode()

    def advance(self, partition_id: int, count: int) -> Iterator[bytes]:
        """The id behind each of the next messages of a partition. Only one number of it changes."""
        at = partition_id - min(self.offsets)
        *head, offsets = self.event_id.split(b"-")
        numbers = offsets.split(b".")
        before = b"-".join([*head, b""]) + b"".join(number + b"." for number in numbers[:at])
        after = b"".join(b"." + number for number in numbers[at + 1 :])
        for _ in range(count):
            self.offsets[partition_id] += 1
            yield b"%s%d%s" % (before, self.offsets[partition_id], after)


class TopicEventsHandler:
    def __init__(
        self,
        reads: SharedReads,
        offsets: LeaderOffsets,
        metadata: Metadata,
        topics: MetadataCache,
        long_polls: LongPolls,
        write_manager: AsyncWriteManagerClient,
    ) -> None:
        self._reads = reads
        self._offsets = offsets
        self._metadata = metadata
        self._topics = topics
        self._long_polls = long_polls
        self._write_manager = write_manager
        self._starting = asyncio.Semaphore(CONCURRENT_STARTS)
        self._large_pages = MemoryBudget(LARGE_PAGES_BYTES)
        self._first = 0  # the partition to read first, so that none starves

    def add_routes(self, router: Router) -> None:
        router.add(routes.TOPIC_EVENTS, self.respond)

    async def respond(self, request: HttpRequest) -> HttpResponse:
        query = request.parse_query(TopicEvents)
        token = request.session_token()
        topic = await self._topics.topic(request.path_topic(), token, or_kept=True)
        event_id = request.header(http_headers.LAST_EVENT_ID) or query.last_event_id
        async with self._starting:
            offsets = await self._start(topic, query, event_id, token)
        return event_stream(self._events(topic, _StreamPosition(topic["topic_id"], offsets)))

    # ---- where a stream starts ----

    async def _start(
        self, topic: TopicRecord, query: TopicEvents, event_id: str | None, token: Token | None
    ) -> dict[int, int]:
        if query.partition_id is not None:
            partition_of(topic, query.partition_id)
        if query.consumer is not None:
            cursors = await self._cursors(topic, query.consumer, query.partition_id, token)
            return cursors if event_id is None else await self._resumed(topic, event_id, list(cursors))
        partitions = range(len(topic["partitions"])) if query.partition_id is None else [query.partition_id]
        if event_id is not None:
            return await self._resumed(topic, event_id, partitions)
        timestamp = query.from_ if isinstance(query.from_, int) else None
        if query.last is not None:
            timestamp = max(0, time.time_ns() // 1_000_000 - query.last)
        bounds = await self._offsets.require(topic, partitions, timestamp=timestamp)
        if query.from_ == "earliest":
            return {p: bounds[p]["beginning_offset"] for p in partitions}
        found = {p: bounds[p]["offset_at"] if timestamp is not None else None for p in partitions}
        return {p: bounds[p]["end_offset"] if offset is None else offset for p, offset in found.items()}

    async def _cursors(
        self, topic: TopicRecord, name: str, partition_id: int | None, token: Token | None
    ) -> dict[int, int]:
        consumer_id = await self._topics.read(lambda: self._metadata.consumer(topic["name"], name, token))
        if consumer_id is None:
            raise ConsumerNotFound(f"the topic has no consumer named {name}; make it with POST /consumer/register")
        cursors = {c["partition_id"]: c["offset"] for c in (await self._write_manager.cursors(consumer_id))["cursors"]}
        if partition_id is None:
            return dict(sorted(cursors.items()))
        if partition_id not in cursors:
            raise PartitionNotFound(f"the consumer reads partition {min(cursors)} only")
        return {partition_id: cursors[partition_id]}

    async def _resumed(self, topic: TopicRecord, event_id: str, partitions: Sequence[int]) -> dict[int, int]:
        """Known without a leader: a partition that has none right now does not keep a client from coming back."""
        offsets = EventPosition.parse(event_id).offsets_in(topic["topic_id"], partitions)
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + PAST_END_WAIT_S
        while True:
            bounds = await self._offsets.ask(topic, partitions)
            past = [p for p, bound in bounds.items() if offsets[p] > bound["end_offset"]]
            if not past:
                return offsets
            if now_s() > deadline_s:
                p, end = past[0], bounds[past[0]]["end_offset"]
                raise PastEnd(
                    f"the event id is at offset {offsets[p]} of partition {p}, which ends at {end}",
                    details={"partition_id": p, "end_offset": end},
                )
            await asyncio.sleep(LAGGING_PAUSE_S)

    # ---- the stream ----

    async def _events(self, topic: TopicRecord, position: _StreamPosition) -> AsyncGenerator[bytes]:
        now_s = asyncio.get_running_loop().time
        yield encode_start(position.event_id)
        sent_s = now_s()
        while not self._long_polls.stopping:
            current = await self._current(topic)
            if current is None:
                end = EndEvent(topic=topic["name"])
                yield encode_event(end.model_dump_json().encode(), event=b"end", event_id=position.event_id)
                return
            topic = current
            grown = [
                p
                for p, end_offset in self._long_polls.known_ends(topic, position.offsets).items()
                if end_offset > position.offsets[p]
            ]
            if grown:
                async with aclosing(self._read(topic, position, grown)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                        sent_s = now_s()
            else:
                await self._long_polls.wait_beyond(topic, position.offsets, sent_s + KEEP_ALIVE_S, is_limited=False)
            if now_s() >= sent_s + KEEP_ALIVE_S:
                yield KEEP_ALIVE
                sent_s = now_s()

    async def _current(self, topic: TopicRecord) -> TopicRecord | None:
        """The topic as it is now; None when it was deleted, also if there is another one of its name."""
        try:
            record = await self._topics.topic(topic["name"], or_kept=True)
        except TopicNotFound:
            return None
        except Unavailable:
            return topic  # brokers know whether the partitions still exist
        return record if record["topic_id"] == topic["topic_id"] else None

    async def _read(self, topic: TopicRecord, position: _StreamPosition, grown: Sequence[int]) -> AsyncGenerator[bytes]:
        """What is there of some of the partitions. A read that takes longer is joined by the next round."""
        self._first += 1
        order = [grown[(self._first + at) % len(grown)] for at in range(min(len(grown), CONCURRENT_READS))]
        reads = {self._reads.read(topic, p, position.offsets[p]): p for p in order}
        done, _ = await asyncio.wait(reads, timeout=READ_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        progress = False
        for reading in done:
            p = reads[reading]
            try:
                page = reading.result()
            except OffsetOutOfRange as error:
                progress = True
                yield _gap(position, p, int(error.details["beginning_offset"]))
            except (Unavailable, PartitionNotFound):
                continue  # until a leader is there; a topic that was deleted is noticed by its record
            else:
                if page.messages:
                    progress = True
                    size = page.bytes + len(page.messages) * len(position.event_id)
                    async with self._large_pages.reserved(size) if size > LARGE_PAGE_BYTES else nullcontext():
                        yield _messages(position, p, page)
        if done and not progress:
            await asyncio.sleep(LAGGING_PAUSE_S)


def _messages(position: _StreamPosition, partition_id: int, page: EncodedPage) -> bytes:
    ids = position.advance(partition_id, len(page.messages))
    return b"".join(
        encode_event(message, event=b"message", event_id=event_id)
        for event_id, message in zip(ids, page.messages, strict=True)
    )


def _gap(position: _StreamPosition, partition_id: int, beginning_offset: int) -> bytes:
    before = position.offsets[partition_id]
    position.offsets[partition_id] = beginning_offset
    gap = GapEvent(
        partition_id=partition_id,
        from_offset=before,
        to_offset=beginning_offset,
        messages=beginning_offset - before,
    )
    return encode_event(gap.model_dump_json().encode(), event=b"gap", event_id=position.event_id)
