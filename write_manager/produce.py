"""Enqueue: one message into its partition, safe to repeat."""

import os
import time
from uuid import UUID

from myqueue.protocol import batch as wire
from myqueue.protocol.batch import Message
from myqueue.protocol.errors import (
    BY_CODE,
    MyQueueError,
    NoLeader,
    NotLeader,
    Outcome,
    PartitionNotFound,
    ProducerNotFound,
    TooLarge,
    Unavailable,
)
from myqueue.protocol.limits import MAX_KEY_BYTES, MAX_MESSAGE_BYTES
from myqueue.protocol.marks import Mark, encode_marks, key_hash, message_crc
from myqueue.protocol.models import Produce
from myqueue.protocol.partitioner import partition_for
from write_manager.broker_calls import BrokerCalls
from write_manager.directory import Directory, Partition, Topic
from write_manager.membership import Membership

RETRY_PAUSE_S = 0.03
ATTEMPT_TIMEOUT_S = 1.0  # a leader that hangs must leave time to ask another replica


class Producing:
    def __init__(
        self,
        directory: Directory,
        members: Membership,
        calls: BrokerCalls,
        *,
        leader_wait_s: float,
        timeout_s: float,
    ) -> None:
        self._directory = directory
        self._members = members
        self._calls = calls
        self._leader_wait_s = leader_wait_s
        self._timeout_s = timeout_s

    def enqueue(self, request: Produce, idempotency_key: str | None) -> tuple[int, int]:
        """Partition and offset of the message. The same idempotency key gets the same answer."""
        topic = self._directory.topic(request.topic)
        if self._directory.producers.get(request.producer_id) != topic.name:
            raise ProducerNotFound()
        if len(request.message) > MAX_MESSAGE_BYTES:
            raise TooLarge(f"message has {len(request.message)} bytes, the limit is {MAX_MESSAGE_BYTES}")
        if request.key is not None and len(request.key) > MAX_KEY_BYTES:
            raise TooLarge(f"key has {len(request.key)} bytes, the limit is {MAX_KEY_BYTES}")
        partition = topic.partition(self._choose(topic, request, idempotency_key))
        message = Message(request.message, request.key, timestamp=time.time_ns() // 1_000_000)
        # A message without a key gets one of its own: then our retries are as safe as the client's.
        identity = (
            key_hash(f"producer {request.producer_id}", str(topic.topic_id), idempotency_key)
            if idempotency_key is not None
            else os.urandom(16)
        )
        mark = Mark(0, request.producer_id, message_crc(message), identity)
        offset = self._append(
            topic.topic_id,
            partition,
            wire.encode(topic.topic_id, partition.partition_id, [message]) + encode_marks([mark]),
        )
        partition.learn_bounds(0, offset + 1)
        return partition.partition_id, offset

    def _choose(self, topic: Topic, request: Produce, idempotency_key: str | None) -> int:
        if request.partition_id is not None:
            return request.partition_id
        if request.key is not None:
            return partition_for(request.key, len(topic.partitions))
        if idempotency_key is not None:
            # Round robin would send a retry elsewhere, where nobody knows the first try.
            return partition_for(idempotency_key.encode(), len(topic.partitions))
        return topic.turns.choose(topic.partition_ids)

    def _append(self, topic_id: UUID, partition: Partition, data: bytes) -> int:
        """Repeated until a leader takes it: the mark in the data makes that safe."""
        started_s = time.monotonic()
        outcome: Outcome = "not_written"
        turn = 0
        while True:
            spent_s = time.monotonic() - started_s
            endpoints = self._members.endpoints(partition.leader, partition.replicas)
            try:
                if not endpoints:
                    raise NoLeader(outcome="not_written")
                timeout_s = min(ATTEMPT_TIMEOUT_S, self._timeout_s - spent_s)
                endpoint = endpoints[turn % len(endpoints)]
                answer = self._calls.append(endpoint, topic_id, partition.partition_id, data, timeout_s)
            except (Unavailable, NotLeader, PartitionNotFound) as error:
                if error.outcome == "unknown":
                    outcome = "unknown"
                turn = self._next_turn(partition, error, turn)
                if time.monotonic() - started_s + RETRY_PAUSE_S > self._leader_wait_s:
                    raise NoLeader(outcome=outcome, retry_after_s=1) from error
                time.sleep(RETRY_PAUSE_S)
                continue
            result = answer["results"][0]
            if "error_code" in result:
                raise BY_CODE.get(result["error_code"], MyQueueError)(outcome="not_written")
            return result["offset"]

    def _next_turn(self, partition: Partition, error: MyQueueError, turn: int) -> int:
        """0 for the leader that a broker named, else the next replica may know more."""
        leader = error.details.get("leader") if isinstance(error, NotLeader) else None
        if leader in partition.replicas and leader != partition.leader:
            partition.leader = leader
            return 0
        return turn + 1
