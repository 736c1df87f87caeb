"""Who leads which partition of a topic, and the grant to go there."""

import threading
import time
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from myqueue.protocol import routes
from myqueue.protocol.errors import MyQueueError, TopicNotFound
from myqueue.transport import Transport

CALL_S = 5.0  # to ask for it, retries included
RETRY_EVERY_S = 1.0  # to renew a grant that is still good
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

    def path(self, broker_id: int, partition: int) -> str:
        return routes.APPEND_BATCH.path.format(broker_id=broker_id, topic_id=self.topic_id, partition_id=partition)


class Routing:
    """May be shared by threads. The table is renewed at half of its grant's life by whoever comes first."""

    def __init__(self, transport: Transport, topic: str) -> None:
        self._transport = transport
        self._topic = topic
        self._asking = threading.Lock()
        self._failed: tuple[float, MyQueueError] | None = None  # the last time it was asked for, and when
        self._table = self._ask(None)

    def table(self) -> RoutingTable:
        table, now = self._table, time.monotonic()
        if now < table.renew_at:
            return table
        if now >= table.expires_at:
            return self.renewed(table)
        if self._asking.acquire(blocking=False):  # the others go on with what is there
            try:
                self._table = self._ask(table)
            except TopicNotFound:
                raise
            except MyQueueError:
                self._table = replace(table, renew_at=now + RETRY_EVERY_S)
            finally:
                self._asking.release()
        return self._table

    def renewed(self, seen: RoutingTable) -> RoutingTable:
        """A table newer than the one that was found wrong."""
        with self._asking:
            if self._table is not seen:
                return self._table
            # Those who waited for somebody else's question do not ask it again at once.
            if self._failed is not None and time.monotonic() < self._failed[0] + RETRY_EVERY_S:
                raise self._failed[1]
            try:
                self._table = self._ask(seen)
            except MyQueueError as error:
                self._failed = (time.monotonic(), error)
                raise
            self._failed = None
            return self._table

    def follow(self, partition: int, leader: int) -> None:
        """A broker says who leads: that counts until the next table."""
        table = self._table
        leaders = (*table.leaders[:partition], leader, *table.leaders[partition + 1 :])
        self._table = replace(table, leaders=leaders)  # if another hint is lost now, it will be given again

    def _ask(self, before: RoutingTable | None) -> RoutingTable:
        body = self._transport.call(routes.ROUTING, path={"topic": self._topic}, deadline_s=CALL_S).body
        table = _table(body, time.monotonic(), time.time())
        if before is not None and table.topic_id != before.topic_id:
            raise TopicNotFound(f"topic {self._topic!r} was deleted and made again: it is another one now")
        return table


def _table(body: dict[str, Any], now: float, clock_s: float) -> RoutingTable:
    partitions = sorted(body["partitions"], key=lambda entry: int(entry["partition_id"]))
    life_s = body["expires_at"] / 1000 - clock_s
    if not 0 < life_s < _LONGEST_LIFE_S:
        life_s = _USUAL_LIFE_S  # the clocks disagree; a grant that is refused is asked for again anyway
    return RoutingTable(
        topic_id=UUID(body["topic_id"]),
        leaders=tuple(entry["leader"] for entry in partitions),
        replicas=tuple(tuple(entry["replicas"]) for entry in partitions),
        grant=body["grant"],
        renew_at=now + life_s / 2,
        expires_at=now + life_s,
    )
