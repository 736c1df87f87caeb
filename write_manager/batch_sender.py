"""Sends the accumulator's batches to brokers: one in flight per partition, one call for those ready at the same time.

A batch that a broker did not take is retried at the next replica until its messages have waited too long for a leader.
"""

import asyncio
from typing import cast
from uuid import UUID

from myqueue.protocol import http_headers, internal
from myqueue.protocol.errors import (
    InternalError,
    MyQueueError,
    NotLeader,
    PartitionNotFound,
    Unavailable,
    from_body,
)
from myqueue.protocol.internal import AppendAnswer, AppendAnswers, AppendFailure
from service.async_calls import AsyncCaller
from service.logs import Log
from write_manager.accumulator import PartitionQueue, PendingMessage
from write_manager.brokers import Brokers
from write_manager.metadata_cache import CachedPartition, CachedTopic
from write_manager.sticky_partitioner import StickyPartitioner

RETRY_PAUSE_S = 0.03
CALL_BYTES = 2 << 20  # beyond this the next batches go in another call
ATTEMPT_TIMEOUT_S = 1.0  # a leader that hangs must leave time to try another replica


class BatchSender:
    """Runs on the event loop, without locks or threads."""

    def __init__(
        self, caller: AsyncCaller, brokers: Brokers, log: Log, *, leader_wait_s: float, timeout_s: float
    ) -> None:
        self._caller = caller
        self._brokers = brokers
        self._log = log
        self._leader_wait_s = leader_wait_s
        self._timeout_s = timeout_s
        self._queues: dict[tuple[UUID, int], PartitionQueue] = {}  # those that have messages
        self._sticky = StickyPartitioner(self._add)
        self._ready: list[PartitionQueue] = []
        self._calls: set[asyncio.Task[None]] = set()

    def add(self, topic: CachedTopic, pending: PendingMessage) -> None:
        if pending.partition_id is None:
            self._sticky.add(topic, pending)
        else:
            self._add(topic.topic_id, topic.partitions[pending.partition_id], pending)

    def _add(self, topic_id: UUID, partition: CachedPartition, pending: PendingMessage) -> None:
        key = (topic_id, partition.partition_id)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = PartitionQueue(topic_id, partition)
            self._make_ready(queue)
        queue.waiting.append(pending)

    def _make_ready(self, queue: PartitionQueue) -> None:
        if not self._ready:
            # After all callbacks that are due now: messages that arrive at the same time share a batch.
            asyncio.get_running_loop().call_soon(self._send_ready)
        self._ready.append(queue)

    def _send_ready(self) -> None:
        ready, self._ready = self._ready, []
        by_endpoint: dict[str, list[PartitionQueue]] = {}
        too_old_s = asyncio.get_running_loop().time() - self._leader_wait_s
        for queue in ready:
            queue.expire(too_old_s)
            if not queue.waiting:
                self._next(queue)
                continue
            endpoints = self._brokers.endpoints(queue.partition.leader, queue.partition.replicas)
            if not endpoints:
                self._pause(queue)
                continue
            endpoint = endpoints[queue.replica_index % len(endpoints)]
            if queue.failing:
                self._start(endpoint, [queue])
            else:
                by_endpoint.setdefault(endpoint, []).append(queue)
        for endpoint, queues in by_endpoint.items():
            self._start(endpoint, queues)

    def _start(self, endpoint: str, queues: list[PartitionQueue]) -> None:
        task = asyncio.create_task(self._send(endpoint, queues))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _send(self, endpoint: str, queues: list[PartitionQueue]) -> None:
        """Whatever happens, each queue goes on: its messages would wait for ever otherwise."""
        try:
            await self._append(endpoint, queues)
        except MyQueueError as error:
            for queue in queues:
                self._failed(queue, error)
        except Exception as error:  # noqa: BLE001 see above
            self._log.exception("defect", endpoint=endpoint, exc_info=error)
            for queue in queues:
                self._failed(queue, InternalError())

    async def _append(self, endpoint: str, queues: list[PartitionQueue]) -> None:
        """Removes the queues that were answered from the list."""
        parts: list[bytes] = []
        size = 0
        for place, queue in enumerate(queues):
            if size > CALL_BYTES:
                self._start(endpoint, queues[place:])
                del queues[place:]
                break
            batch = queue.next_batch()
            parts += (internal.APPEND_ITEM.pack(len(batch)), batch)
            size += len(batch)
        age_s = asyncio.get_running_loop().time() - min(queue.oldest_s for queue in queues)
        timeout_s = min(ATTEMPT_TIMEOUT_S, self._timeout_s - age_s)
        request_id = queues[0].in_flight[0].request.request_id
        answers = (await self._call(endpoint, b"".join(parts), timeout_s, request_id))["answers"]
        if len(answers) != len(queues):
            raise InternalError("the broker answered for another number of batches")
        for answer in answers:
            self._answered(queues[0], answer)
            del queues[0]

    async def _call(self, endpoint: str, body: bytes, timeout_s: float, request_id: str | None) -> AppendAnswers:
        answer = await self._caller.call(
            internal.APPEND.method,
            endpoint + internal.APPEND.path,
            body,
            content_type=http_headers.BATCH_TYPE,
            timeout_s=timeout_s,
            request_id=request_id,
        )
        if answer.status >= 400:
            raise answer.error()
        answers: AppendAnswers = answer.json()
        return answers

    def _answered(self, queue: PartitionQueue, answer: AppendAnswer | AppendFailure) -> None:
        if "error" in answer:
            self._failed(queue, from_body(cast(AppendFailure, answer)["error"], 500))
            return
        queue.replica_index, queue.failing = 0, False
        queue.partition.learn_bounds(0, answer["end_offset"])
        queue.complete(answer)
        self._next(queue)

    def _failed(self, queue: PartitionQueue, error: MyQueueError) -> None:
        queue.failing = True
        if not isinstance(error, Unavailable | NotLeader | PartitionNotFound):
            queue.fail(error)
            self._next(queue)
            return
        queue.retry(error)
        leader = error.details.get("leader") if isinstance(error, NotLeader) else None
        if leader in queue.partition.replicas and leader != queue.partition.leader:
            queue.partition.leader = leader
            queue.replica_index = 0
        else:
            queue.replica_index += 1  # the next replica may be the leader, or return a newer leader hint
        self._pause(queue)

    def _pause(self, queue: PartitionQueue) -> None:
        """Answer the messages that would be too old after the pause; retry the others then."""
        loop = asyncio.get_running_loop()
        queue.expire(loop.time() + RETRY_PAUSE_S - self._leader_wait_s)
        loop.call_later(RETRY_PAUSE_S, self._next, queue)

    def _next(self, queue: PartitionQueue) -> None:
        if queue.waiting:
            self._make_ready(queue)
        else:
            del self._queues[queue.topic_id, queue.partition.partition_id]
