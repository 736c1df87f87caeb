"""Topic records that are kept for a moment, and what a session token makes of them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from myqueue.protocol.errors import MetadataUnavailable, TopicNotFound
from myqueue.protocol.internal import TopicRecord
from myqueue.protocol.token import Token
from read_manager import metadata_cache
from read_manager.metadata import Metadata
from read_manager.metadata_cache import MetadataCache

OLD, NEW = Token(1, 100), Token(1, 200)


class Counting(Metadata):
    def __init__(self) -> None:
        self.looks: list[Token | None] = []
        self.exists = True
        self.away = False

    def topic(self, name: str, token: Token | None = None) -> TopicRecord:
        self.looks.append(token)
        if self.away:
            raise MetadataUnavailable()
        if not self.exists:
            raise TopicNotFound()
        return {
            "name": name,
            "topic_id": str(len(self.looks)),
            "replication": 1,
            "retention_ms": None,
            "retention_bytes": None,
            "partitions": [],
        }


def run(test: Callable[[MetadataCache, Counting], Awaitable[None]]) -> None:
    async def whole() -> None:
        catalog = Counting()
        topics = MetadataCache(catalog)
        try:
            await test(topics, catalog)
        finally:
            topics.stop()

    asyncio.run(whole())


def test_one_look_serves_all_that_ask() -> None:
    async def test(topics: MetadataCache, catalog: Counting) -> None:
        found = await asyncio.gather(*(topics.topic("orders") for _ in range(100)))
        assert {record["topic_id"] for record in found} == {"1"}
        assert (await topics.topic("orders"))["topic_id"] == "1"
        assert (await topics.topic("orders", kept_s=-1.0))["topic_id"] == "2"
        assert (await topics.topic("orders", fresh=True))["topic_id"] == "3"

    run(test)


def test_a_record_serves_only_tokens_it_was_read_with() -> None:
    async def test(topics: MetadataCache, catalog: Counting) -> None:
        await topics.topic("orders")
        await topics.topic("orders", OLD)
        await topics.topic("orders", OLD)
        await topics.topic("orders", NEW)
        for token in (None, OLD, NEW):
            await topics.topic("orders", token)
        assert catalog.looks == [None, OLD, NEW]

    run(test)


def test_records_grow_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_cache, "KEPT_S", 0.0)

    async def test(topics: MetadataCache, catalog: Counting) -> None:
        for _ in range(2):
            await topics.topic("orders")
            await asyncio.sleep(0.001)
        assert len(catalog.looks) == 2

    run(test)


def test_what_is_not_there_is_looked_for_every_time() -> None:
    async def test(topics: MetadataCache, catalog: Counting) -> None:
        await topics.topic("orders")
        catalog.exists = False
        for _ in range(2):
            with pytest.raises(TopicNotFound):
                await topics.topic("orders", fresh=True)
        with pytest.raises(TopicNotFound):
            await topics.topic("orders")
        catalog.exists = True
        assert (await topics.topic("orders"))["name"] == "orders"

    run(test)


def test_positions_of_other_timelines_do_not_compare() -> None:
    async def test(topics: MetadataCache, catalog: Counting) -> None:
        await topics.topic("orders", NEW)
        await topics.topic("orders", Token(2, 1))
        await topics.topic("orders", OLD)
        assert catalog.looks == [NEW, Token(2, 1), OLD]

    run(test)


def test_while_nothing_answers_the_last_record_is_kept_for_the_way_to_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_cache, "KEPT_S", 0.0)

    async def test(topics: MetadataCache, catalog: Counting) -> None:
        catalog.away = True
        with pytest.raises(MetadataUnavailable):
            await topics.topic("orders", or_kept=True)
        catalog.away = False
        await topics.topic("orders", OLD)
        catalog.away = True
        await asyncio.sleep(0.001)
        assert (await topics.topic("orders"))["topic_id"] == "2"
        assert (await topics.topic("orders", OLD))["topic_id"] == "2"
        with pytest.raises(MetadataUnavailable):
            await topics.topic("orders", NEW)
        assert (await topics.topic("orders", NEW, or_kept=True))["topic_id"] == "2"
        with pytest.raises(MetadataUnavailable):
            await topics.topic("orders", fresh=True)
        catalog.away, catalog.exists = False, False
        with pytest.raises(TopicNotFound):
            await topics.topic("orders", or_kept=True)
        catalog.away = True
        with pytest.raises(MetadataUnavailable):
            await topics.topic("orders", or_kept=True)

    run(test)
