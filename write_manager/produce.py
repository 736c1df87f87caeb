"""Enqueue: messages into their partitions, safe to repeat."""

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from myqueue.protocol.batch import NO_PRODUCER, Message
from myqueue.protocol.dedup_records import key_hash, message_crc
from myqueue.protocol.errors import ProducerNotFound, TooLarge
from myqueue.protocol.limits import MAX_KEY_BYTES, MAX_MESSAGE_BYTES
from myqueue.protocol.models import Produce
from myqueue.protocol.partitioner import partition_for
from write_manager.appends import Appends
from write_manager.coalescing import Request, Settled, Waiting
from write_manager.directory import Directory, Partition, Topic

# What a batch holds besides the bytes themselves: offsets, time, the mark; and the same for each header.
MESSAGE_OVERHEAD_BYTES = 56
HEADER_OVERHEAD_BYTES = 16


@dataclass(frozen=True, slots=True)
class Posted:
    """A message as it came, checked, with the partition that its sender chose."""

    message: Message
    partition_id: int | None
    crc: int
    bytes: int  # at most, in a batch


class Addressed(NamedTuple):
    posted: Posted
    topic: Topic
    partition: Partition | None  # None: any
    identity: bytes


def posted(message: Message, partition_id: int | None) -> Posted:
    key_bytes = 0 if message.key is None else len(message.key)
    header_bytes = sum(len(name.encode()) + len(value or b"") for name, value in message.headers)
    for name, size, limit in (
        ("message", len(message.value), MAX_MESSAGE_BYTES),
        ("key", key_bytes, MAX_KEY_BYTES),
        ("headers", header_bytes, MAX_MESSAGE_BYTES),
    ):
        if size > limit:
            raise TooLarge(f"{name} has {size} bytes, the limit is {limit}")
    overhead = MESSAGE_OVERHEAD_BYTES + HEADER_OVERHEAD_BYTES * len(message.headers)
    size = len(message.value) + key_bytes + header_bytes + overhead
    return Posted(message, partition_id, message_crc(message), size)


class Producing:
    """On the event loop; nothing in here waits for anything but the brokers, and for the first look at a producer."""

    def __init__(self, directory: Directory, appends: Appends) -> None:
        self._directory = directory
        self._appends = appends

    async def enqueue(self, request: Produce, idempotency_key: str | None) -> tuple[int, int]:
        """Partition and offset of the message. The same idempotency key gets the same answer."""
        topic = self._directory.topic(request.topic)
        if not await self._directory.has_producer(topic, request.producer_id):
            raise ProducerNotFound()
        one = posted(Message(request.message, request.key, timestamp=time.time_ns() // 1_000_000), request.partition_id)
        partition = self._partition_of(topic, one, idempotency_key)
        identity = (
            key_hash(f"producer {request.producer_id}", str(topic.topic_id), idempotency_key)
            if idempotency_key is not None
            else os.urandom(16)
        )
        [(partition_id, result)] = await self.append([Addressed(one, topic, partition, identity)], request.producer_id)
        if isinstance(result, int):
            return partition_id, result
        raise result

    def address(self, topic_name: str, messages: Sequence[Posted], idempotency_key: str | None) -> list[Addressed]:
        """Where each message goes, and under which identity. Takes time for many, and any thread may do it."""
        topic = self._directory.topic(topic_name)
        addressed = []
        for number, one in enumerate(messages):
            own_key = None if idempotency_key is None else f"{idempotency_key}/{number}"
            partition = self._partition_of(topic, one, own_key)
            # A message without a key gets one of its own: then our retries are as safe as the client's.
            identity = os.urandom(16) if own_key is None else key_hash("log api", str(topic.topic_id), own_key)
            addressed.append(Addressed(one, topic, partition, identity))
        return addressed

    def _partition_of(self, topic: Topic, one: Posted, own_key: str | None) -> Partition | None:
        if one.partition_id is not None:
            return topic.partition(one.partition_id)
        if one.message.key is not None:
            return topic.partition(partition_for(one.message.key, len(topic.partitions)))
        if own_key is not None:
            # Taking turns would send a retry elsewhere, where nobody knows the first try.
            return topic.partition(partition_for(own_key.encode(), len(topic.partitions)))
        return None

    async def append(self, messages: Sequence[Addressed], producer_id: int = NO_PRODUCER) -> list[Settled]:
        """For each message its partition, and its offset or why it has none."""
        done: asyncio.Future[list[Settled]] = asyncio.get_running_loop().create_future()

        def settle(results: list[Settled]) -> None:
            if not done.done():  # whoever asked may have gone
                done.set_result(results)

        request = Request(len(messages), settle)
        request_id = structlog.contextvars.get_contextvars().get("request_id")
        for number, (one, topic, partition, identity) in enumerate(messages):
            waiting = Waiting(one.message, producer_id, one.crc, identity, one.bytes, request, number, request_id)
            self._appends.add(topic, partition, waiting)
        return await done
