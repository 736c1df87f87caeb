"""Produce: choose each message's partition and append it through the accumulator; safe to repeat with a key."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from myqueue.protocol import http_headers, routes
from myqueue.protocol.batch import NO_PRODUCER, Message
from myqueue.protocol.dedup_records import key_hash
from myqueue.protocol.errors import MyQueueError, ProducerNotFound, UnsupportedMediaType
from myqueue.protocol.models import Produce
from myqueue.protocol.partitioner import partition_for
from service.error_encoding import JSON
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router
from write_manager import produce_request
from write_manager.accumulator import AppendOutcome, PendingMessage, ProduceRequest, pending_message
from write_manager.batch_sender import BatchSender
from write_manager.metadata_cache import CachedTopic, MetadataCache

SMALL_BODY_BYTES = 64 << 10  # a larger body is parsed on a thread: it would keep the loop from other work


class Producing:
    """Runs on the event loop. Waits only for brokers, and for PostgreSQL when a producer is used for the first time."""

    def __init__(self, cache: MetadataCache, sender: BatchSender) -> None:
        self._cache = cache
        self._sender = sender

    async def produce(
        self, request: Produce, idempotency_key: str | None, request_id: str | None = None
    ) -> tuple[int, int]:
        """Partition and offset of the message. The same idempotency key gets the same answer."""
        topic = self._cache.topic(request.topic)
        if not await self._cache.has_producer(topic, request.producer_id):
            raise ProducerNotFound()
        message = Message(request.message, request.key, timestamp=time.time_ns() // 1_000_000)
        pending = pending_message(message, request.partition_id)
        _choose_partition(topic, pending, idempotency_key)
        pending.identity = (
            key_hash(f"producer {request.producer_id}", str(topic.topic_id), idempotency_key)
            if idempotency_key is not None
            else os.urandom(16)
        )
        [(partition_id, result)] = await self.append(topic, [pending], request_id, request.producer_id)
        if isinstance(result, int):
            return partition_id, result
        raise result

    def assign(self, topic_name: str, messages: Sequence[PendingMessage], idempotency_key: str | None) -> CachedTopic:
        """Set the partition and the identity of each message. Slow for many messages; safe in any thread."""
        topic = self._cache.topic(topic_name)
        for number, pending in enumerate(messages):
            own_key = None if idempotency_key is None else f"{idempotency_key}/{number}"
            _choose_partition(topic, pending, own_key)
            # A message without a key gets a random one: then our retries are as safe as the client's.
            pending.identity = os.urandom(16) if own_key is None else key_hash("log api", str(topic.topic_id), own_key)
        return topic

    async def append(
        self,
        topic: CachedTopic,
        messages: Sequence[PendingMessage],
        request_id: str | None,
        producer_id: int = NO_PRODUCER,
    ) -> list[AppendOutcome]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[AppendOutcome]] = loop.create_future()
        request = ProduceRequest(
            len(messages),
            partial(_complete, done),
            producer_id=producer_id,
            request_id=request_id,
            received_s=loop.time(),
        )
        for position, pending in enumerate(messages):
            pending.request, pending.position = request, position
            self._sender.add(topic, pending)
        return await done


def _complete(done: "asyncio.Future[list[AppendOutcome]]", outcomes: list[AppendOutcome]) -> None:
    if not done.done():  # cancelled when the client has gone
        done.set_result(outcomes)


def _choose_partition(topic: CachedTopic, pending: PendingMessage, idempotency_key: str | None) -> None:
    """The producer's choice, else by the message's key, else by the idempotency key, else any."""
    if pending.partition_id is not None:
        topic.partition(pending.partition_id)
    elif pending.message.key is not None:
        pending.partition_id = partition_for(pending.message.key, len(topic.partitions))
    elif idempotency_key is not None:
        # The sticky partitioner would send a retry to another partition, whose log does not hold the first attempt.
        pending.partition_id = partition_for(idempotency_key.encode(), len(topic.partitions))


def add_produce_routes(router: Router, producing: Producing) -> None:
    async def produce(request: HttpRequest) -> HttpResponse:
        partition_id, offset = await producing.produce(
            request.parse_json(Produce), request.idempotency_key(), request.request_id
        )
        body = b'{"status": "success", "partition_id": %d, "offset": %d}' % (partition_id, offset)
        return HttpResponse(200, [("content-type", JSON)], body)

    async def append_messages(request: HttpRequest) -> HttpResponse:
        parse = _parser(request)

        def assigned() -> tuple[CachedTopic, list[PendingMessage]]:
            messages = parse(request.body)
            return producing.assign(request.path_values["topic"], messages, request.idempotency_key()), messages

        if len(request.body) <= SMALL_BODY_BYTES:
            topic, messages = assigned()
        else:
            topic, messages = await asyncio.to_thread(assigned)
        return _response(await producing.append(topic, messages, request.request_id))

    router.add(routes.PRODUCE, produce)
    router.add(routes.APPEND_MESSAGES, append_messages)


def _parser(request: HttpRequest) -> Callable[[bytes], list[PendingMessage]]:
    parsers = {
        JSON: produce_request.from_json,
        http_headers.NDJSON_TYPE: produce_request.from_ndjson,
        http_headers.ARROW_TYPE: produce_request.from_arrow,
    }
    parser = parsers.get(request.content_type)
    if parser is None:
        *most, last = parsers
        raise UnsupportedMediaType(f"Content-Type must be {', '.join(most)} or {last}")
    request.check_body_only("a body")
    return parser


def _response(outcomes: Sequence[AppendOutcome]) -> HttpResponse:
    failures = [result for _, result in outcomes if isinstance(result, MyQueueError)]
    if len(failures) == len(outcomes):
        raise next((failure for failure in failures if failure.outcome == "unknown"), failures[0])
    offsets = [_line(partition_id, result) for partition_id, result in outcomes]
    return HttpResponse.json({"status": "success", "offsets": offsets}, 207 if failures else 200)


def _line(partition_id: int, result: int | MyQueueError) -> dict[str, Any]:
    if not isinstance(result, MyQueueError):
        return {"partition_id": partition_id, "partition": partition_id, "offset": result}
    line = {
        "partition_id": partition_id,
        "partition": partition_id,
        "error_code": result.error_code,
        "message": result.message,
        "retriable": result.retriable,
    }
    return line if result.outcome is None else line | {"outcome": result.outcome}
