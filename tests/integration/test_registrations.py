"""Producers and consumers as rows: registered in groups, expired and deleted in slices, on the real PostgreSQL trio."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
import structlog
from sqlalchemy import text

import db.models
from db import catalog, cleanup
from db.models import ConsumerMetadata, ConsumerRow, DeletedTopic, ProducerMetadata
from db.primary import Primary
from db.registrations import RegistrationResult, Wanted, WantedConsumer, WantedProducer
from db.stats_listings import LISTINGS
from myqueue.protocol.errors import ConsumerNotFound, MetadataUnavailable, TopicNotFound
from myqueue.protocol.internal import PartitionReport
from myqueue.protocol.models import ListConsumers
from stack.local import LocalStack
from write_manager.brokers import Brokers
from write_manager.cleanup import Cleanup
from write_manager.cursors import Cursors
from write_manager.metadata_cache import MetadataCache
from write_manager.registration_store import RegistrationStore

TTL_S = 1000.0
# Not the one that draws tracebacks: on a busy machine that takes longer than a registration may wait.
LOG = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])


@dataclass
class Parts:
    """Those of a write manager that know of producers and consumers."""

    primary: Primary
    cache: MetadataCache
    brokers: Brokers
    cursors: Cursors
    store: RegistrationStore
    cleanup: Cleanup

    async def clean(self) -> None:
        await asyncio.to_thread(self.cleanup.run)

    async def registered(self, wanted: Wanted) -> int:
        stored, _ = await self.store.store(wanted)
        return stored.id


def with_parts(primary: Primary, main: Callable[[Parts], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        cache = MetadataCache(primary, nameless_ttl_s=TTL_S)
        with primary.reading() as session:
            cache.load(session)
        cursors = Cursors(primary, LOG, loop, lease_s=3, claim_s=10)
        brokers = Brokers(primary, cache, LOG, ttl_s=5, heartbeat_interval_s=1)
        job = Cleanup(
            primary,
            cache,
            brokers,
            cursors,
            loop,
            LOG,
            nameless_ttl_s=TTL_S,
            deleted_topic_ttl_s=TTL_S,
        )
        store = RegistrationStore(primary, cache, LOG, loop)
        parts = Parts(primary, cache, brokers, cursors, store, job)
        try:
            await main(parts)
        finally:
            parts.store.stop()
            await asyncio.to_thread(cursors.stop)

    asyncio.run(run())


def new_topic(primary: Primary, name: str) -> db.models.TopicRow:
    topic = db.models.TopicRow(name=name, topic_id=uuid.uuid4(), replication=1)
    with primary.transaction() as transaction:
        catalog.insert_topic(transaction.session, topic, [[], []])
    return topic


def consumer(topic: db.models.TopicRow, name: str | None = None, partition_id: int | None = None) -> WantedConsumer:
    return WantedConsumer(topic.topic_id, topic.name, name, partition_id, {0: 5, 1: 6})


def producer(topic: db.models.TopicRow, name: str | None = None, *, opens: bool = False) -> WantedProducer:
    return WantedProducer(topic.topic_id, topic.name, name, opens)


def grow_silent(primary: Primary, by_s: float) -> None:
    with primary.engine.begin() as connection:
        for table in ("producer_metadata", "consumer"):
            connection.execute(
                text(f"UPDATE {table} SET last_seen = last_seen - make_interval(secs => :by)"),
                {"by": by_s},
            )


def count(primary: Primary, table: type[db.models.Base], topic_id: uuid.UUID) -> int:
    with primary.reading() as session:
        return session.query(table).filter_by(topic_id=topic_id).count()


def test_registrations_that_come_together_share_a_transaction(primary: Primary) -> None:
    topic = new_topic(primary, "grouped")

    async def main(parts: Parts) -> None:
        wanted: list[Wanted] = [producer(topic), consumer(topic), producer(topic, opens=True)] * 20
        wanted += [producer(topic, "p")] * 20 + [producer(topic, "p", opens=True)] * 20
        wanted += [consumer(topic, "c", 1)] + [consumer(topic, "c")] * 19
        results = await asyncio.gather(*(parts.store.store(each) for each in wanted))
        stored = [each for each, _ in results]
        assert len({token for _, token in results}) <= 2, "a transaction each would have a token each"
        nameless, named = stored[:60], stored[60:]
        assert all(each.new for each in nameless)
        for kind in (WantedProducer, WantedConsumer):
            ids = [each.id for each, want in zip(stored, wanted, strict=True) if isinstance(want, kind) and each.new]
            assert sorted(ids) == list(range(min(ids), min(ids) + len(ids))), "without holes"
        [p_id] = {each.id for each in named[:40]}
        assert [each.new for each in named[:40]].count(True) == 1
        assert sorted(each.epoch for each in named[20:40] if each.epoch is not None) == list(range(20))
        assert {(each.id, each.partition_id) for each in named[40:]} == {(named[40].id, 1)}
        assert [each.new for each in named[40:]].count(True) == 1
        again, _ = await parts.store.store(producer(topic, "p"))
        assert again == RegistrationResult(p_id, False)
        kept = await parts.cache.consumer(named[40].id)
        assert kept is not None
        assert (kept.topic, kept.name, kept.partition_id) == ("grouped", "c", 1)

    with_parts(primary, main)


def test_one_that_cannot_be_stored_is_not_in_the_way_of_the_others(primary: Primary) -> None:
    topic, gone = new_topic(primary, "beside"), db.models.TopicRow(name="gone", topic_id=uuid.uuid4(), replication=1)

    async def main(parts: Parts) -> None:
        failing: list[Wanted] = [
            producer(gone),
            consumer(gone),
            WantedConsumer(topic.topic_id, topic.name, "unknown", None, None),
            producer(topic, "\ud800"),  # what PostgreSQL cannot store
        ]
        wanted = [*failing, producer(topic), consumer(topic)]
        results = await asyncio.gather(*(parts.store.store(each) for each in wanted), return_exceptions=True)
        kinds = [type(each) for each in results[:4]]
        assert kinds == [TopicNotFound, TopicNotFound, ConsumerNotFound, MetadataUnavailable]
        assert [isinstance(each, tuple) for each in results[4:]] == [True, True]

    with_parts(primary, main)


def test_after_an_unknown_outcome_the_same_name_finds_what_was_stored(trio: LocalStack, primary: Primary) -> None:
    topic = new_topic(primary, "unknown")
    wanted: list[Wanted] = [producer(topic, f"p{number}") for number in range(5)]
    wanted += [consumer(topic, f"c{number}") for number in range(5)]

    async def main(parts: Parts) -> None:
        for standby in ("postgres-2", "postgres-3"):
            await asyncio.to_thread(trio.stop, standby)
        failed = await asyncio.gather(*(parts.store.store(each) for each in wanted), return_exceptions=True)
        assert [type(each) for each in failed] == [MetadataUnavailable] * 10
        assert {each.outcome for each in failed if isinstance(each, MetadataUnavailable)} == {"unknown"}
        for standby in ("postgres-2", "postgres-3"):
            await asyncio.to_thread(trio.start, standby)
        async with asyncio.timeout(30):
            while True:
                try:
                    results = await asyncio.gather(*(parts.store.store(each) for each in wanted))
                    break
                except MetadataUnavailable:
                    await asyncio.sleep(0.1)
        assert [stored.new for stored, _ in results] == [False] * 10
        assert len({stored.id for stored, _ in results[:5]}) == 5
        assert count(primary, ProducerMetadata, topic.topic_id) == count(primary, ConsumerRow, topic.topic_id) == 5

    with_parts(primary, main)


def test_those_without_a_name_expire_when_they_are_silent(primary: Primary) -> None:
    topic = new_topic(primary, "silent")
    producers: list[int] = []
    consumers: list[int] = []

    async def before(parts: Parts) -> None:
        producers[:] = [
            await parts.registered(each) for each in (producer(topic), producer(topic), producer(topic, "p"))
        ]
        consumers[:] = [
            await parts.registered(each) for each in (consumer(topic), consumer(topic), consumer(topic, "c"))
        ]

    async def after(parts: Parts) -> None:
        here = parts.cache.topic("silent")
        await parts.cursors.statuses(consumers[1])
        assert await parts.cache.has_producer(here, producers[0])
        assert await parts.cache.consumer(consumers[0]) is not None
        await parts.clean()  # stores that these two were used
        grow_silent(primary, TTL_S * 0.2)
        await parts.clean()
        assert [await parts.cache.has_producer(here, each) for each in producers] == [True, False, True]
        assert [await parts.cache.consumer(each) is not None for each in consumers] == [True, False, True]
        with pytest.raises(ConsumerNotFound):
            await parts.cursors.statuses(consumers[1])
        with primary.reading() as session:
            assert session.query(ConsumerMetadata).filter_by(consumer_id=consumers[1]).count() == 0

    with_parts(primary, before)
    grow_silent(primary, TTL_S * 0.9)
    with_parts(primary, after)


def test_what_a_deleted_topic_left_is_deleted_in_slices_also_after_a_restart(
    primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "CONSUMERS_PER_SLICE", 3)
    monkeypatch.setattr(cleanup, "PRODUCERS_PER_SLICE", 4)
    topic = new_topic(primary, "left-over")

    async def before(parts: Parts) -> None:
        wanted: list[Wanted] = [consumer(topic, f"c{number}") for number in range(10)]
        wanted += [producer(topic, f"p{number}") for number in range(10)]
        ids = [await parts.registered(each) for each in wanted]
        await parts.cursors.statuses(ids[0])
        with primary.transaction() as transaction:
            catalog.delete_topic(transaction.session, "left-over")
        parts.cache.remove_topic("left-over")
        assert await parts.cache.consumer(ids[0]) is None
        with pytest.raises(TopicNotFound):
            await parts.store.store(consumer(topic, "late"))
        again = new_topic(primary, "left-over")
        with primary.reading() as session:
            parts.cache.load(session)
            assert catalog.consumer(session, ids[0]) is None
            listing = LISTINGS["list_consumers"].read(session, ListConsumers(topic="left-over"))
            assert listing.model_dump()["consumers"] == []
        first, _ = await parts.store.store(consumer(again, "c0"))
        assert first.new, "nothing is inherited"
        assert not await parts.cache.has_producer(parts.cache.topic("left-over"), ids[10])
        assert count(primary, ConsumerRow, topic.topic_id) == 10

    async def after(parts: Parts) -> None:
        await parts.clean()
        assert count(primary, ConsumerRow, topic.topic_id) == count(primary, ProducerMetadata, topic.topic_id) == 0
        again = parts.cache.topic("left-over")
        assert count(primary, ConsumerRow, again.topic_id) == 1
        assert str(topic.topic_id) in parts.cache.deleted_topic_ids
        with primary.engine.begin() as connection:
            connection.execute(text("UPDATE deleted_topic SET deleted_at = deleted_at - interval '2000 s'"))
        await parts.clean()
        assert str(topic.topic_id) not in parts.cache.deleted_topic_ids
        assert count(primary, DeletedTopic, topic.topic_id) == 0

    with_parts(primary, before)
    with_parts(primary, after)


def test_a_deleted_topic_is_remembered_while_a_broker_holds_it(primary: Primary) -> None:
    topic = new_topic(primary, "held-by-broker")
    held: PartitionReport = {
        "topic_id": str(topic.topic_id),
        "partition_id": 0,
        "incarnation": "f",
        "role": "follower",
        "term": 1,
        "configuration": None,
        "beginning_offset": 0,
        "end_offset": 0,
        "size_bytes": 0,
    }

    async def main(parts: Parts) -> None:
        parts.brokers.register(
            {
                "broker_id": None,
                "endpoint": "http://127.0.0.1:7777",
                "raft_address": "127.0.0.1:7778",
                "data_address": "",
                "hostname": "test",
                "incarnation": "f",
                "clock_ms": 0,
                "partitions": [held],
            }
        )
        with primary.transaction() as transaction:
            catalog.delete_topic(transaction.session, "held-by-broker")
        parts.cache.remove_topic("held-by-broker")
        with primary.engine.begin() as connection:
            connection.execute(text("UPDATE deleted_topic SET deleted_at = deleted_at - interval '2000 s'"))
        await parts.clean()
        assert count(primary, DeletedTopic, topic.topic_id) == 1
        assert str(topic.topic_id) in parts.cache.deleted_topic_ids
        [broker_id] = parts.brokers.replicas()
        parts.brokers.replica_deleted(broker_id, str(topic.topic_id), 0)
        await parts.clean()
        assert count(primary, DeletedTopic, topic.topic_id) == 0

    with_parts(primary, main)


def test_what_is_missing_is_unknown_while_another_write_manager_may_be_active(primary: Primary) -> None:
    topic = new_topic(primary, "certain")
    is_verified = False
    cache = MetadataCache(primary, nameless_ttl_s=TTL_S, is_verified=lambda: is_verified)
    with primary.reading() as session:
        cache.load(session)

    async def missing() -> list[type[Exception] | None]:
        found: list[type[Exception] | None] = []
        for look_up in (cache.has_producer(cache.topic(topic.name), 999_999), cache.consumer(999_999)):
            try:
                assert not await look_up
            except MetadataUnavailable:
                found.append(MetadataUnavailable)
            else:
                found.append(None)
        try:
            cache.topic("never-made")
        except (MetadataUnavailable, TopicNotFound) as error:
            found.append(type(error))
        return found

    assert asyncio.run(missing()) == [MetadataUnavailable] * 3
    is_verified = True
    assert asyncio.run(missing()) == [None, None, TopicNotFound]
