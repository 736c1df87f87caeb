"""Polls whose brokers are slow: what is answered was read under a lease."""

import asyncio
import json
import logging
from collections.abc import Collection
from uuid import UUID

import pytest
import structlog

from myqueue.protocol import batch as wire
from myqueue.protocol.batch import Message
from myqueue.protocol.errors import NoLeader, OffsetOutOfRange
from myqueue.protocol.internal import FETCH_ITEM, LeaseAnswer, LeaseChangesAnswer, LeaseRequest, TopicRecord
from myqueue.protocol.models import Poll
from myqueue.protocol.token import Token
from read_manager.lease_watch import LeaseWatch
from read_manager.long_poll import ClientConnection, LongPolls
from read_manager.memory_budget import MemoryBudget
from read_manager.metadata_cache import MetadataCache
from read_manager.poll import PollHandler
from read_manager.replica_fetch import Fetched, ReplicaFetcher
from read_manager.write_manager_client import AsyncWriteManagerClient
from service.async_calls import AsyncCaller

TOPIC_ID = "9f1d3c52-8d0a-4f6e-9a51-1b7f3f3f9c11"
PARTITIONS = 6
BODY = wire.encode_body([Message(b"x")])


class Leases(AsyncWriteManagerClient):
    """All partitions to every member."""

    def __init__(self, lease_s: float = 10.0) -> None:
        self.lease_s = lease_s
        self.asked_s: list[float] = []

    async def lease(self, consumer_id: int, request: LeaseRequest) -> LeaseAnswer:
        self.asked_s.append(asyncio.get_running_loop().time())
        return {
            "status": "success",
            "consumer_id": consumer_id,
            "topic": "orders",
            "topic_id": TOPIC_ID,
            "lease_ms": round(self.lease_s * 1000),
            "leases": [{"partition_id": p, "generation": 1, "cursor": 0, "revoking": False} for p in range(PARTITIONS)],
        }

    async def lease_changes(self, after: int, wait_s: float) -> LeaseChangesAnswer:
        await asyncio.sleep(wait_s)
        return {"status": "success", "last": 0, "complete": True, "changed": []}


class OneTopic(MetadataCache):
    def __init__(self) -> None:
        """Without a catalog."""

    async def topic(self, name: str, token: Token | None = None, **_: object) -> TopicRecord:
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


class Behaving(ReplicaFetcher):
    """One message in each partition, but for those that are slow, away or cut."""

    def __init__(self, *, slow: Collection[int] = (), away: Collection[int] = (), cut: Collection[int] = ()) -> None:
        self._slow, self._away, self._cut = slow, away, cut

    async def fetch(self, topic: TopicRecord, partition_id: int, offset: int, max_bytes: int) -> Fetched:
        if partition_id in self._slow:
            await asyncio.sleep(10)
        if partition_id in self._away:
            raise NoLeader()
        begins = 7 if partition_id in self._cut else 0
        if offset < begins:
            raise OffsetOutOfRange(details={"beginning_offset": begins})
        header = wire.placed(wire.header_for(UUID(TOPIC_ID), partition_id, BODY, 1), begins, 1)
        batch = header.pack() + BODY
        return Fetched(FETCH_ITEM.pack(len(batch), 0) + batch, begins, begins + 1)


async def stays() -> None:
    await asyncio.Event().wait()


def poll(replicas: ReplicaFetcher, leases: Leases, *, wait_ms: int = 0) -> tuple[list[tuple[int, int]], float]:
    """Partition and offset of what was answered, and how long after the last lease."""

    async def whole() -> tuple[list[tuple[int, int]], float]:
        topics = OneTopic()
        polls = LongPolls(
            AsyncCaller("secret"), topics, structlog.wrap_logger(logging.getLogger("test")), max_waiters=10
        )
        watch = LeaseWatch(leases, structlog.wrap_logger(logging.getLogger("test")))
        polling = PollHandler(leases, replicas, topics, polls, MemoryBudget(1 << 30), watch)
        try:
            with ClientConnection(stays) as client:
                answer = json.loads(await polling.poll(7, Poll(wait_ms=wait_ms), client))
        finally:
            polls.stop()
            watch.stop()
        after_s = asyncio.get_running_loop().time() - leases.asked_s[-1]
        return sorted((m["partition_id"], m["offset"]) for m in answer["messages"]), after_s

    return asyncio.run(whole())


def test_all_partitions_are_read() -> None:
    found, _ = poll(Behaving(), Leases())
    assert found == [(p, 0) for p in range(PARTITIONS)]


def test_what_retention_has_cut_is_passed_over() -> None:
    found, _ = poll(Behaving(cut=[1, 4]), Leases())
    assert found == [(0, 0), (1, 7), (2, 0), (3, 0), (4, 7), (5, 0)]


def test_partitions_that_cannot_be_read_do_not_hold_up_the_others() -> None:
    found, _ = poll(Behaving(away=[0, 2]), Leases())
    assert found == [(p, 0) for p in (1, 3, 4, 5)]
    with pytest.raises(NoLeader):
        poll(Behaving(away=range(PARTITIONS)), Leases())


def test_nothing_is_read_when_the_lease_may_be_over() -> None:
    leases = Leases(0.4)
    found, after_s = poll(Behaving(slow=range(PARTITIONS)), leases, wait_ms=1500)
    assert found == []
    assert len(leases.asked_s) >= 3, "it is renewed between attempts"
    assert after_s < 5, "no attempt is waited for to its end"
