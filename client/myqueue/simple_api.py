"""One method per call of the simple API; each returns the response's JSON and raises the typed error of a failure."""

import uuid
from typing import Any
from uuid import UUID

from myqueue.error_subjects import KnownConsumer
from myqueue.message import Value, as_bytes
from myqueue.protocol import routes
from myqueue.protocol.json_bytes import bytes_to_json
from myqueue.protocol.limits import DEFAULT_PARTITIONS
from myqueue.start_position import Start, start_position
from myqueue.transport import Transport

Json = dict[str, Any]


def new_key() -> str:
    """A fresh Idempotency-Key."""
    return uuid.uuid4().hex


class SimpleApi:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create_topic(
        self,
        name: str,
        partitions: int = DEFAULT_PARTITIONS,
        replication: int | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
    ) -> Json:
        # Creating twice is safe: the second attempt gets 409. Only the caller can decide whether an earlier attempt
        # created it: after one that may have been carried out, that error's outcome is "unknown".
        body = {
            "name": name,
            "partitions": partitions,
            "replication": replication,
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
        }
        return self._transport.call(routes.CREATE_TOPIC, body=_given(body)).body

    def list_topics(self) -> Json:
        return self._transport.call(routes.LIST_TOPICS).body

    def list_partitions(self, topic: str) -> Json:
        return self._transport.call(routes.LIST_PARTITIONS, path={"topic": topic}).body

    def register_producer(self, topic: str, name: str | None = None, topic_id: UUID | None = None) -> Json:
        # Without a name, a retry after an unknown outcome would register a second one.
        body = _given({"topic": topic, "name": name, "topic_id": topic_id and str(topic_id)})
        return self._transport.call(routes.REGISTER_PRODUCER, body=body, repeatable=name is not None).body

    def register_consumer(
        self, topic: str, name: str | None = None, partition_id: int | None = None, start: Start = "latest"
    ) -> Json:
        where = start_position(start, partition_id)
        body = _given({"topic": topic, "name": name, "partition_id": partition_id, "from": where})
        answer = self._transport.call(routes.REGISTER_CONSUMER, body=body, repeatable=name is not None).body
        if name is not None:
            self._transport.consumers[answer["consumer_id"]] = KnownConsumer(name, topic)
        return answer

    def produce(
        self,
        topic: str,
        producer_id: int,
        message: Value,
        key: Value | None = None,
        partition_id: int | None = None,
        *,
        idempotency_key: str | None = None,
        deadline_s: float | None = None,
    ) -> Json:
        body = {
            "topic": topic,
            "producer_id": producer_id,
            "message": bytes_to_json(as_bytes(message, "message")),
            "key": None if key is None else bytes_to_json(as_bytes(key, "key")),
            "partition_id": partition_id,
        }
        return self._transport.call(
            routes.PRODUCE, body=_given(body), idempotency_key=idempotency_key or new_key(), deadline_s=deadline_s
        ).body

    def consume(
        self,
        topic: str,
        consumer_id: int,
        partition_id: int | None = None,
        wait_ms: int = 0,
        *,
        idempotency_key: str | None = None,
    ) -> Json | None:
        """None when there is nothing to read."""
        query = {"topic": topic, "consumer_id": consumer_id, "partition_id": partition_id, "wait_ms": wait_ms or None}
        answer = self._transport.call(
            routes.CONSUME,
            query=_given(query),
            idempotency_key=idempotency_key or new_key(),
            wait_s=wait_ms / 1000,
        )
        return None if answer.status == 204 else answer.body

    def size(self, topic: str, consumer_id: int) -> Json:
        return self._transport.call(routes.SIZE, query={"topic": topic, "consumer_id": consumer_id}).body

    def close(self) -> None:
        self._transport.close()


def _given(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value is not None}
