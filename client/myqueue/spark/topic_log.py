"""The partitions of a topic over the data plane: appends and fetches that go on until a deadline."""

import logging
import random
import time
from uuid import UUID

from myqueue import attempts, data_plane
from myqueue.attempts import Next
from myqueue.protocol import errors
from myqueue.protocol.batch import Header, batches_in, check_body
from myqueue.retry import RetryPolicy
from myqueue.routing import Routing, RoutingTable
from myqueue.sources import Source
from myqueue.transport import SHORTEST_ATTEMPT_S, Transport
from myqueue.wire import Wire

logger = logging.getLogger("myqueue")

DELIVERY_S = 60.0  # for one batch, all attempts and pauses together
APPEND_S = 3.0  # for one attempt: a broker decides within 2 s, the rest is for the way there and back
FETCH_S = 3.0
FETCH_BYTES = 1 << 20
_RETRY = RetryPolicy(first_pause_s=0.05, longest_pause_s=1.0)
# What the log says about a batch's stamp holds for the batch, whatever became of earlier attempts.
_OF_THE_STAMP = (errors.IdempotencyConflict, errors.ProducerFenced, errors.SequenceGap, errors.UnknownProducer)


class TopicLog:
    """May be shared by threads; each brings a connection of its own."""

    def __init__(self, transport: Transport, topic: str) -> None:
        """Raises TopicNotFound."""
        self.topic = topic
        self._routing = Routing(transport, topic)
        table = self._routing.table()
        self.topic_id: UUID = table.topic_id
        self.partitions = len(table.leaders)

    def append(self, wire: Wire, header: Header, body: bytes) -> int:
        """The offset of the first message; raises the error of the last attempt."""
        head, partition = header.pack(), header.partition
        deadline = time.monotonic() + DELIVERY_S
        failures, maybe_written = 0, False
        while True:
            table: RoutingTable | None = None
            try:
                table = self._routing.table()
                leader = _leader(table, partition)
                left_s = max(SHORTEST_ATTEMPT_S, deadline - time.monotonic())
                return data_plane.append(wire, table, leader, partition, head, body, min(APPEND_S, left_s))
            except errors.MyQueueError as error:
                failures += 1
                following = Next.RETRY if error.retriable else Next.FAIL
                if table is not None:
                    maybe_written = maybe_written or error.outcome != "not_written"
                    following = attempts.judge(error, maybe_written)
                if not isinstance(error, _OF_THE_STAMP):
                    error.outcome = "unknown" if maybe_written else "not_written"
                if following is Next.REROUTE and table is not None:
                    self._reroute(partition, error, table)
                retry_after_s = None if following is Next.REROUTE else error.retry_after_s
                pause_s = 0.0 if attempts.at_once(error, failures) else _pause_s(failures, retry_after_s)
                if following not in (Next.RETRY, Next.REROUTE) or time.monotonic() + pause_s >= deadline:
                    raise
                logger.debug("append to %s/%d failed: %s", self.topic, partition, error)
                time.sleep(pause_s)

    def fetch(self, wire: Wire, partition: int, offset: int) -> list[tuple[Header, memoryview]]:
        """Whole batches from the one on that holds `offset`, which must have been acknowledged.

        Raises OffsetOutOfRange for what is no longer stored.
        """
        source = Source()
        deadline = time.monotonic() + DELIVERY_S
        failures = 0
        while True:
            table: RoutingTable | None = None
            try:
                table = self._routing.table()
                return self._fetched(wire, table, source, partition, offset)
            except (errors.OffsetOutOfRange, errors.Forbidden):
                raise
            except errors.MyQueueError as error:
                failures += 1
                pause_s = _pause_s(failures, None)
                if (table is None and not error.retriable) or time.monotonic() + pause_s >= deadline:
                    raise
                if table is not None:
                    source.failed(table, partition, time.monotonic())
                    self._reroute(partition, error, table)
                logger.debug("fetch from %s/%d failed: %s", self.topic, partition, error)
                time.sleep(pause_s)

    def _fetched(
        self, wire: Wire, table: RoutingTable, source: Source, partition: int, offset: int
    ) -> list[tuple[Header, memoryview]]:
        broker_id = source.choose(table, partition, time.monotonic())
        if broker_id is None:
            raise errors.NoLeader()
        fetched = data_plane.fetch(
            wire, table, broker_id, partition, offset, max_bytes=FETCH_BYTES, wait_s=0.0, read_s=FETCH_S
        )
        if not fetched.data:
            raise errors.Unavailable(f"{self.topic}/{partition}: broker {broker_id} does not have offset {offset} yet")
        batches = list(batches_in(memoryview(fetched.data)))
        for header, body in batches:
            check_body(header, body)
        return batches

    def _reroute(self, partition: int, error: errors.MyQueueError, table: RoutingTable) -> None:
        """Learns who leads; raises TopicNotFound if there is nobody to learn of any more."""
        leader = error.details.get("leader")
        if isinstance(leader, int) and leader != table.leaders[partition]:
            self._routing.follow(partition, leader)
            return
        try:
            self._routing.renewed(table)
        except errors.TopicNotFound:
            raise
        except errors.MyQueueError as failed:
            logger.debug("routing of %s is not renewed: %s", self.topic, failed)  # the next attempt tells


def _leader(table: RoutingTable, partition: int) -> int:
    leader = table.leaders[partition]
    if leader is None:
        raise errors.NoLeader(outcome="not_written")
    return leader


def _pause_s(failures: int, retry_after_s: float | None) -> float:
    return _RETRY.pause_s(failures, retry_after_s, random.random())  # noqa: S311
