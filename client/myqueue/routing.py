"""The leaders and replicas of a topic's partitions, the grant to use them, and the replica to fetch from."""

import logging
import threading
import time
from copy import copy
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from myqueue.protocol import routes
from myqueue.protocol.errors import MyQueueError, NoLeader, Outcome, TopicNotFound
from myqueue.transport import Transport

logger = logging.getLogger("myqueue")

CALL_S = 5.0  # for one request, retries included
RETRY_EVERY_S = 1.0  # to renew a grant that is still valid
SWITCH_S = 10.0  # a replica that lost touch with its leader answers, too, but has no new messages
_LONGEST_LIFE_S = 3600.0
_USUAL_LIFE_S = 60.0


@dataclass(frozen=True, slots=True)
class RoutingTable:
    topic_id: UUID
    leaders: tuple[int | None, ...]  # by partition
    replicas: tuple[tuple[int, ...], ...]
    grant: str
    renew_at: float  # monotonic
    expires_at: float
    topic: str = ""

    def path(self, broker_id: int, partition: int) -> str:
        return routes.APPEND_BATCH.path.format(broker_id=broker_id, topic_id=self.topic_id, partition_id=partition)

    def leader(self, partition: int) -> int:
        leader = self.leaders[partition]
        if leader is None:
            raise self.no_leader(partition, outcome="not_written")
        return leader

    def no_leader(self, partition: int, outcome: Outcome | None = None) -> NoLeader:
        return NoLeader(f"partition {partition} of topic {self.topic!r} has no leader right now", outcome=outcome)


class RoutingCache:
    """The metadata cache of one topic. May be shared by threads.

    The first thread that finds the table at half of its grant's life renews it.
    """

    def __init__(self, transport: Transport, topic: str) -> None:
        self._transport = transport
        self._topic = topic
        self._fetching = threading.Lock()
        self._failed: tuple[float, MyQueueError] | None = None  # the last refresh, if it failed, and when
        self._table = self._fetch(None)

    def table(self) -> RoutingTable:
        table, now = self._table, time.monotonic()
        if now < table.renew_at:
            return table
        if now >= table.expires_at:
            return self.refreshed(table)
        if self._fetching.acquire(blocking=False):  # other threads continue with the table they have
            try:
                self._table = self._fetch(table)
            except TopicNotFound:
                raise
            except MyQueueError:
                self._table = replace(table, renew_at=now + RETRY_EVERY_S)
            finally:
                self._fetching.release()
        return self._table

    def refreshed(self, stale: RoutingTable) -> RoutingTable:
        """A table newer than the one that was found wrong."""
        with self._fetching:
            if self._table is not stale:
                return self._table
            # Threads that waited for a request that failed do not repeat it at once.
            if self._failed is not None and time.monotonic() < self._failed[0] + RETRY_EVERY_S:
                raise copy(self._failed[1])  # the one who catches it may write into it
            try:
                self._table = self._fetch(stale)
            except MyQueueError as error:
                self._failed = (time.monotonic(), error)
                raise
            self._failed = None
            return self._table

    def reroute(self, partition: int, error: MyQueueError, table: RoutingTable) -> None:
        """Finds the leader again after an append failed: by the error's hint, or by a new table.

        Raises TopicNotFound if the topic is deleted. Any other failure is left to the next attempt.
        """
        leader = error.details.get("leader")
        if isinstance(leader, int) and leader != table.leaders[partition]:
            self.set_leader(partition, leader)
            return
        try:
            self.refreshed(table)
        except TopicNotFound:
            raise
        except MyQueueError as failed:
            logger.debug("routing of %s is not renewed: %s", self._topic, failed)

    def set_leader(self, partition: int, leader: int) -> None:
        """A broker named the leader: valid until the next table."""
        table = self._table
        leaders = (*table.leaders[:partition], leader, *table.leaders[partition + 1 :])
        self._table = replace(table, leaders=leaders)  # a hint of another thread that this overwrites comes again

    def _fetch(self, before: RoutingTable | None) -> RoutingTable:
        body = self._transport.call(routes.ROUTING, path={"topic": self._topic}, deadline_s=CALL_S).body
        return table_of(self._topic, body, before)


@dataclass(slots=True)
class ReplicaSelector:
    """The replica of one partition to fetch from: the leader, or for a while another one after it failed. Pure."""

    broker_id: int | None = None
    leader: int | None = None  # as it was known when the broker was chosen
    until: float = 0.0

    def choose(self, table: RoutingTable, partition: int, now: float) -> int:
        """Raises NoLeader if the partition has no replicas to choose from."""
        leader = table.leaders[partition]
        if self.broker_id is None or leader != self.leader or now >= self.until:
            self.leader = leader
            self.broker_id = leader if leader is not None else next(iter(table.replicas[partition]), None)
            self.until = now + SWITCH_S
        if self.broker_id is None:
            raise table.no_leader(partition)
        return self.broker_id

    def failed(self, table: RoutingTable, partition: int, now: float) -> None:
        replicas = table.replicas[partition]
        if self.broker_id in replicas:
            self.broker_id = replicas[(replicas.index(self.broker_id) + 1) % len(replicas)]
        else:
            self.broker_id = next(iter(replicas), None)
        self.until = now + SWITCH_S


def table_of(topic: str, body: dict[str, Any], before: RoutingTable | None) -> RoutingTable:
    """The table in a response; raises TopicNotFound if it is another topic's than the table before."""
    table = _table(body, topic, time.monotonic(), time.time())
    if before is not None and table.topic_id != before.topic_id:
        raise TopicNotFound(f"topic {topic!r} was deleted and made again: it is another one now")
    return table


def _table(body: dict[str, Any], topic: str, now: float, clock_s: float) -> RoutingTable:
    partitions = sorted(body["partitions"], key=lambda entry: int(entry["partition_id"]))
    life_s = body["expires_at"] / 1000 - clock_s
    if not 0 < life_s < _LONGEST_LIFE_S:
        life_s = _USUAL_LIFE_S  # the clocks disagree; a refused grant is requested again anyway
    return RoutingTable(
        topic_id=UUID(body["topic_id"]),
        leaders=tuple(entry["leader"] for entry in partitions),
        replicas=tuple(tuple(entry["replicas"]) for entry in partitions),
        grant=body["grant"],
        renew_at=now + life_s / 2,
        expires_at=now + life_s,
        topic=topic,
    )
