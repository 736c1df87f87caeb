"""Waiting for messages, against brokers that are small servers of the test."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog
import uvloop

from myqueue.protocol.errors import Overloaded, TopicNotFound
from myqueue.protocol.internal import PartitionRecord, TopicRecord
from myqueue.protocol.token import Token
from read_manager import long_poll
from read_manager.long_poll import ClientConnection, LongPolls
from read_manager.metadata_cache import MetadataCache
from service.async_calls import AsyncCaller

TOPIC_ID = "9f1d3c52-8d0a-4f6e-9a51-1b7f3f3f9c11"
SOON_S = 5.0


class Broker:
    """Knows ends of partitions and answers waits as brokers do."""

    def __init__(self, *partitions: int) -> None:
        self.ends = dict.fromkeys(partitions, 0)
        self.asked: list[dict[int, int]] = []
        self.open = self.most_open = 0
        self._grown = asyncio.Event()

    async def __aenter__(self) -> "Broker":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.close()

    def grow(self, partition_id: int, end: int) -> None:
        self.ends[partition_id] = end
        self._grown.set()
        self._grown = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                request = json.loads(await reader.readexactly(length))
                self.open += 1
                self.most_open = max(self.most_open, self.open)
                try:
                    body = json.dumps({"status": "success", "grown": await self._answer(request)}).encode()
                finally:
                    self.open -= 1
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        wanted = {p["partition_id"]: p["offset"] for p in request["partitions"]}
        self.asked.append(wanted)
        deadline_s = asyncio.get_running_loop().time() + request["wait_ms"] / 1000
        while True:
            ends = {p: self.ends.get(p, -1) for p in wanted}
            grown = [{"topic_id": TOPIC_ID, "partition_id": p, "end_offset": e} for p, e in ends.items()]
            found = [entry for entry in grown if entry["end_offset"] == -1 or _beyond(entry, wanted)]
            try:
                if not found:
                    async with asyncio.timeout_at(deadline_s):
                        await self._grown.wait()
                    continue
            except TimeoutError:
                pass
            return found


def _beyond(entry: dict[str, Any], wanted: dict[int, int]) -> bool:
    return bool(entry["end_offset"] > wanted[entry["partition_id"]])


class OneTopic(MetadataCache):
    """The catalog as the test sets it."""

    def __init__(self) -> None:
        self.record: TopicRecord | None = None

    def place(self, *endpoints: list[str]) -> TopicRecord:
        self.record = record([list(some) for some in endpoints])
        return self.record

    async def topic(self, name: str, token: Token | None = None, **_: object) -> TopicRecord:
        if self.record is None:
            raise TopicNotFound()
        return self.record


def record(endpoints: list[list[str]]) -> TopicRecord:
    partitions: list[PartitionRecord] = [
        {
            "partition_id": number,
            "broker_id": 1,
            "endpoints": some,
            "term": 1,
            "replicas": [1],
            "beginning_offset": 0,
            "end_offset": 0,
            "size_bytes": 0,
        }
        for number, some in enumerate(endpoints)
    ]
    return {
        "name": "orders",
        "topic_id": TOPIC_ID,
        "replication": 1,
        "retention_ms": None,
        "retention_bytes": None,
        "partitions": partitions,
    }


def run(test: Callable[[LongPolls, OneTopic], Awaitable[None]], *, max_waiters: int = 5000) -> None:
    async def whole() -> None:
        topics = OneTopic()
        log = structlog.wrap_logger(logging.getLogger("test"))
        polls = LongPolls(AsyncCaller("secret"), topics, log, max_waiters=max_waiters)
        try:
            async with asyncio.timeout(20):
                await test(polls, topics)
        finally:
            polls.stop()
            await asyncio.sleep(0)

    uvloop.run(whole())


async def stays() -> None:
    await asyncio.Event().wait()


def soon() -> float:
    return asyncio.get_running_loop().time() + SOON_S


def test_growth_wakes_those_it_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll, "FIRST_ENDS_S", SOON_S)

    async def test(polls: LongPolls, topics: OneTopic) -> None:
        async with Broker(0, 1) as broker:
            topic = topics.place([broker.url], [broker.url])
            assert await polls.watched_ends(topic, [0, 1], soon()) == {0: 0, 1: 0}
            assert len(broker.asked) <= 2
            here = asyncio.create_task(polls.wait_beyond(topic, {0: 0}, soon()))
            further = asyncio.create_task(polls.wait_beyond(topic, {0: 2}, soon()))
            elsewhere = asyncio.create_task(polls.wait_beyond(topic, {1: 0}, soon()))
            await asyncio.sleep(0.05)
            broker.grow(0, 1)
            assert await here
            assert polls.known_ends(topic, [0]) == {0: 1}
            broker.grow(0, 3)
            assert await further
            assert not elsewhere.done()
            broker.grow(1, 1)
            assert await elsewhere
            assert await polls.wait_beyond(topic, {0: 2, 1: 7}, soon()), "what is known needs no waiting"

    run(test)


def test_a_partition_without_replicas_does_not_delay_the_others() -> None:
    async def test(polls: LongPolls, topics: OneTopic) -> None:
        async with Broker(0) as broker:
            topic = topics.place([broker.url], [], [broker.url])
            assert await polls.watched_ends(topic, [0, 1, 2], soon()) == {0: 0, 1: -1, 2: -1}
            waiting = asyncio.create_task(polls.wait_beyond(topic, {0: 0, 1: -1, 2: -1}, soon()))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            broker.grow(0, 1)
            assert await waiting

    run(test)


def test_time_is_up() -> None:
    async def test(polls: LongPolls, topics: OneTopic) -> None:
        async with Broker(0) as broker:
            topic = topics.place([broker.url])
            assert not await polls.wait_beyond(topic, {0: 0}, asyncio.get_running_loop().time() + 0.1)

    run(test)


def test_a_thousand_requests_wait_over_one_connection() -> None:
    async def test(polls: LongPolls, topics: OneTopic) -> None:
        async with Broker(0, 1) as broker:
            topic = topics.place([broker.url], [broker.url])
            waiting = [asyncio.create_task(polls.wait_beyond(topic, {n % 2: 0}, soon())) for n in range(1000)]
            await asyncio.sleep(0.1)
            assert polls.waiting == 1000
            for partition_id in (0, 1):
                broker.grow(partition_id, 1)
            assert all(await asyncio.gather(*waiting))
            assert broker.most_open <= 2  # one that was given up for a larger one may still be open
            assert len(broker.asked) < 10

    run(test)


def test_another_broker_is_watched_when_one_is_unavailable() -> None:
    async def test(polls: LongPolls, topics: OneTopic) -> None:
        async with Broker(0) as gone, Broker() as holds_nothing, Broker(0) as good:
            gone.close()
            topic = topics.place([gone.url, holds_nothing.url, good.url])
            good.grow(0, 4)
            assert await polls.wait_beyond(topic, {0: 3}, soon())

    run(test)


def test_a_moved_partition_is_followed() -> None:
    async def test(polls: LongPolls, topics: OneTopic) -> None:
        async with Broker(0) as old, Broker(0) as new:
            topic = topics.place([old.url])
            waiting = asyncio.create_task(polls.wait_beyond(topic, {0: 0}, soon()))
            await asyncio.sleep(0.05)
            topics.place([new.url])
            old.ends.clear()
            old.grow(1, 1)  # it wakes up and finds that it does not hold the partition any more
            await asyncio.sleep(0.05)
            new.grow(0, 1)
            assert await waiting

    run(test)


def test_a_deleted_topic_wakes_all_requests() -> None:
    async def test(polls: LongPolls, topics: OneTopic) -> None:
        async with Broker(0) as broker:
            topic = topics.place([broker.url])
            waiting = asyncio.create_task(polls.wait_beyond(topic, {0: 0}, soon()))
            await asyncio.sleep(0.05)
            topics.record = None
            broker.ends.clear()
            broker.grow(1, 1)
            assert await waiting, "the next read reports that the topic is gone"

    run(test)


def test_stopping_wakes_all_requests() -> None:
    async def test(polls: LongPolls, topics: OneTopic) -> None:
        async with Broker(0) as broker:
            topic = topics.place([broker.url])
            waiting = [asyncio.create_task(polls.wait_beyond(topic, {0: 0}, soon())) for _ in range(3)]
            with ClientConnection(stays) as client:
                paused = asyncio.create_task(polls.pause(soon(), client))
                await asyncio.sleep(0.05)
                assert not paused.done()
                polls.stop()
                assert await asyncio.gather(*waiting) == [False] * 3
                await paused
            assert not await polls.wait_beyond(topic, {0: 0}, soon())

    run(test)


def test_a_closed_connection_ends_its_wait() -> None:
    async def test(polls: LongPolls, topics: OneTopic) -> None:
        async with Broker(0) as broker:
            topic = topics.place([broker.url])
            closed = asyncio.Event()

            async def gone() -> None:
                await closed.wait()

            with ClientConnection(gone) as client:
                waiting = asyncio.create_task(polls.wait_beyond(topic, {0: 0}, soon(), client))
                await asyncio.sleep(0.05)
                assert not client.is_closed
                closed.set()
                assert not await waiting
                assert client.is_closed
            assert polls.waiting == 0

    run(test)


def test_more_waiting_requests_than_the_limit_are_refused() -> None:
    async def test(polls: LongPolls, topics: OneTopic) -> None:
        async with Broker(0) as broker:
            topic = topics.place([broker.url])
            waiting = [asyncio.create_task(polls.wait_beyond(topic, {0: 0}, soon())) for _ in range(2)]
            await asyncio.sleep(0.05)
            with pytest.raises(Overloaded):
                await polls.wait_beyond(topic, {0: 0}, soon())
            broker.grow(0, 1)
            assert all(await asyncio.gather(*waiting))

    run(test, max_waiters=2)
