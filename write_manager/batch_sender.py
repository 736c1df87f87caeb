"""Sends the accumulator's batches to brokers, one in flight per partition.

A batch that a broker did not take is retried at the next replica until its messages have waited too long for a leader.
"""

import asyncio
from uuid import UUID

from myqueue.protocol.errors import InternalError, MyQueueError, NotLeader, PartitionNotFound, Unavailable
from service.logs import Log
from write_manager.accumulator import PartitionQueue, PendingMessage
from write_manager.append_connections import AppendConnections
from write_manager.brokers import Brokers
from write_manager.metadata_cache import CachedPartition, CachedTopic
from write_manager.sticky_partitioner import StickyPartitioner

RETRY_PAUSE_S = 0.03
ATTEMPT_TIMEOUT_S = 1.0  # a leader that hangs must leave time to try another replica


class BatchSender:
    """Runs on the event loop, without locks or threads."""

    def __init__(
        self, connections: AppendConnections, brokers: Brokers, log: Log, *, leader_wait_s: float, timeout_s: float
    ) -> None:
        self._connections = connections
        self._brokers = brokers
        self._log = log
        self._leader_wait_s = leader_wait_s
        self._timeout_s = timeout_s
        self._queues: dict[tuple[UUID, int], PartitionQueue] = {}  # those that have messages
        self._sticky = StickyPartitioner(self._add)
        self._ready: list[PartitionQueue] = []
        self._sending: set[asyncio.Task[None]] = set()

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
            task = asyncio.create_task(self._send(endpoints[queue.replica_index % len(endpoints)], queue))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, endpoint: str, queue: PartitionQueue) -> None:
        """Whatever happens, the queue goes on: its messages would wait for ever otherwise."""
        try:
            batch = queue.next_batch()
            age_s = asyncio.get_running_loop().time() - queue.oldest_s
            timeout_s = min(ATTEMPT_TIMEOUT_S, self._timeout_s - age_s)
            appended = await self._connections.append(endpoint, batch, timeout_s, queue.in_flight[0].request.request_id)
            queue.replica_index = 0
            queue.partition.learn_bounds(0, appended.end_offset)
            queue.complete(appended.offsets)
        except MyQueueError as error:
            self._failed(queue, error)
        except Exception as error:  # noqa: BLE001 see above
            self._log.exception("defect", endpoint=endpoint, exc_info=error)
            self._failed(queue, InternalError(outcome="unknown"))
        else:
            self._next(queue)

    def _failed(self, queue: PartitionQueue, error: MyQueueError) -> None:
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
