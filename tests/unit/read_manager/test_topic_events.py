"""Event streams whose brokers are slow, away, or have deleted what is asked for; and what streams share."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Mapping
from uuid import UUID

import structlog

from myqueue.protocol import batch as wire
from myqueue.protocol.batch import Message
from myqueue.protocol.errors import NoLeader, OffsetOutOfRange, TopicNotFound
from myqueue.protocol.event_position import EventPosition
from myqueue.protocol.internal import FETCH_ITEM, TopicRecord
from myqueue.protocol.message_calls import Offsets
from myqueue.protocol.token import Token
from read_manager.leader_offsets import LeaderOffsets
from read_manager.long_poll import LongPolls
from read_manager.memory_budget import MemoryBudget
from read_manager.metadata import Metadata
from read_manager.metadata_cache import MetadataCache
from read_manager.replica_fetch import Fetched, ReplicaFetcher
from read_manager.shared_reads import SharedReads
from read_manager.topic_events import TopicEventsHandler
from read_manager.write_manager_client import AsyncWriteManagerClient
from service.async_calls import AsyncCaller
from service.http_messages import HttpRequest

TOPIC_ID = "9f1d3c52-8d0a-4f6e-9a51-1b7f3f3f9c11"
TAG = "9f1d3c528d0a4f6e"
PARTITIONS = 3
LOG = structlog.wrap_logger(logging.getLogger("test"))


class Brokers(ReplicaFetcher, LeaderOffsets, LongPolls):
    """Logs of messages with one byte, seen through every interface that a stream uses."""

    def __init__(self, *, away: Collection[int] = (), slow: Collection[int] = ()) -> None:
        LongPolls.__init__(self, AsyncCaller("secret"), OneTopic(self), LOG, max_waiters=0)
        self.begins = [0] * PARTITIONS
        self.ends = [0] * PARTITIONS
        self.is_deleted = False
        self.fetches = 0
        self._away, self._slow = away, slow
        self._grown = asyncio.Event()

    def append(self, partition_id: int, count: int = 1) -> None:
        self.ends[partition_id] += count
        self._grown.set()

    def delete(self) -> None:
        self.is_deleted = True
        self._grown.set()

    def known_ends(self, topic: TopicRecord, partitions: Iterable[int]) -> dict[int, int]:
        return {p: self.ends[p] for p in partitions}

    async def wait_beyond(  # type: ignore[override]
        self, topic: TopicRecord, beyond: Mapping[int, int], deadline_s: float, *, is_limited: bool = True
    ) -> bool:
        assert not is_limited
        self._grown.clear()
        await self._grown.wait()
        return True

    async def ask(self, topic: TopicRecord, partition_ids: Iterable[int], **_: object) -> dict[int, Offsets]:  # type: ignore[override]
        return {
            p: {
                "topic_id": TOPIC_ID,
                "partition_id": p,
                "leader": 1,
                "term": 1,
                "beginning_offset": self.begins[p],
                "end_offset": self.ends[p],
                "size_bytes": 0,
                "offset_at": None,
            }
            for p in partition_ids
            if p not in self._away
        }

    async def fetch(self, topic: TopicRecord, partition_id: int, offset: int, max_bytes: int) -> Fetched:
        self.fetches += 1
        await asyncio.sleep(10 if partition_id in self._slow else 0.01)
        if partition_id in self._away:
            raise NoLeader
        if offset < self.begins[partition_id]:
            raise OffsetOutOfRange(details={"beginning_offset": self.begins[partition_id]})
        count = self.ends[partition_id] - offset
        body = wire.encode_body([Message(b"x")] * count)
        header = wire.placed(wire.header_for(UUID(TOPIC_ID), partition_id, body, count), offset, 1)
        batch = header.pack() + body
        return Fetched(FETCH_ITEM.pack(len(batch), 0) + batch, self.begins[partition_id], self.ends[partition_id])


class OneTopic(MetadataCache):
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def topic(self, name: str, token: Token | None = None, **_: object) -> TopicRecord:
        if self._brokers.is_deleted:
            raise TopicNotFound
        return {
            "name": name,
            "topic_id": TOPIC_ID,
            "replication": 1,
            "retention_ms": None,
            "retention_bytes": None,
            "partitions": [
                {
                    "partition_id": p,
                    "broker_id": None,
                    "endpoints": [],
                    "term": 1,
                    "replicas": [1],
                    "beginning_offset": 0,
                    "end_offset": 0,
                    "size_bytes": 0,
                }
                for p in range(PARTITIONS)
            ],
        }


class Streams:
    def __init__(self, brokers: Brokers) -> None:
        self._handler = TopicEventsHandler(
            SharedReads(brokers, MemoryBudget(1 << 30)),
            brokers,
            Metadata.__new__(Metadata),  # only consumers are looked up there
            OneTopic(brokers),
            brokers,
            AsyncWriteManagerClient.__new__(AsyncWriteManagerClient),
        )

    async def open(self, query: str = "", event_id: str | None = None) -> AsyncGenerator[bytes]:
        headers = {} if event_id is None else {"last-event-id": event_id}
        request = HttpRequest("GET", "/", {"topic": "orders"}, query, headers, b"", None)
        stream = (await self._handler.respond(request)).stream
        assert stream is not None
        return stream


async def events_of(stream: AsyncGenerator[bytes], count: int) -> list[tuple[str, str, dict[str, object]]]:
    """Kind, id and data of the next ones."""
    found: list[tuple[str, str, dict[str, object]]] = []
    while len(found) < count:
        for text in (await anext(stream)).decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in text.splitlines() if not line.startswith(":"))
            if "data" in fields:
                found.append((fields["event"], fields["id"], json.loads(fields["data"])))
    return found


def run(play: Callable[[], Coroutine[None, None, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await play()

    asyncio.run(bounded())


def test_every_id_is_the_position_behind_its_event() -> None:
    async def play() -> None:
        brokers = Brokers()
        for partition_id, count in enumerate((3, 2, 1)):
            brokers.append(partition_id, count)
        stream = await Streams(brokers).open("from=earliest")
        position = [0, 0, 0]
        for kind, event_id, message in await events_of(stream, 6):
            position[int(str(message["partition_id"]))] += 1
            assert (kind, event_id) == ("message", str(EventPosition(TAG, 0, position)))
        await stream.aclose()

    run(play)


def test_streams_at_the_same_offset_share_one_fetch() -> None:
    async def play() -> None:
        brokers = Brokers()
        streams = Streams(brokers)
        opened = [await streams.open() for _ in range(50)]
        reading = [asyncio.create_task(events_of(stream, 1)) for stream in opened]
        await asyncio.sleep(0.05)
        brokers.append(1)
        for events in await asyncio.gather(*reading):
            assert [(kind, event_id) for kind, event_id, _ in events] == [("message", f"1-{TAG}-0-0.1.0")]
        assert brokers.fetches == 1
        for stream in opened:
            await stream.aclose()

    run(play)


def test_partitions_that_cannot_be_read_do_not_hold_up_the_others() -> None:
    async def play() -> None:
        brokers = Brokers(away=[0], slow=[1])
        for partition_id in range(PARTITIONS):
            brokers.append(partition_id, 2)
        stream = await Streams(brokers).open(event_id=f"1-{TAG}-0-0.0.0")
        events = await events_of(stream, 2)
        assert {message["partition_id"] for _, _, message in events} == {2}
        brokers.append(2)
        assert (await events_of(stream, 1))[0][1] == f"1-{TAG}-0-0.0.3"
        await stream.aclose()

    run(play)


def test_what_was_deleted_is_a_gap_and_a_deleted_topic_the_end() -> None:
    async def play() -> None:
        brokers = Brokers()
        brokers.append(0, 9)
        brokers.begins[0] = 7
        stream = await Streams(brokers).open("partition_id=0", f"1-{TAG}-0-4.0.0")
        gap, first, second = await events_of(stream, 3)
        skipped = {"partition_id": 0, "from_offset": 4, "to_offset": 7, "messages": 3, "reason": "retention"}
        assert gap == ("gap", f"1-{TAG}-0-7", skipped)
        assert [event_id for _, event_id, _ in (first, second)] == [f"1-{TAG}-0-8", f"1-{TAG}-0-9"]
        ending = asyncio.create_task(events_of(stream, 1))
        await asyncio.sleep(0.02)
        brokers.delete()
        assert (await ending)[0] == ("end", f"1-{TAG}-0-9", {"topic": "orders", "reason": "topic_deleted"})
        assert [chunk async for chunk in stream] == []

    run(play)
