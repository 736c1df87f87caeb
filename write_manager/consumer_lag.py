"""Lag of all consumers that have a name, for metrics and for the list of the worst. It costs no query per consumer.

Cursors of consumers in use are in memory; those of the others do not move, and one query reads all of them now and
then. Where partitions end is known from the brokers' heartbeats.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from db import cursors as stored
from db.cursors import NamedConsumer
from db.primary import Primary
from myqueue.protocol import internal
from myqueue.protocol.answers import LagList, NamedConsumerLag
from myqueue.protocol.models import ListLag
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router
from write_manager.cursors import Cursors, CursorStatus
from write_manager.metadata_cache import CachedPartition, MetadataCache
from write_manager.partition_assignment import NO_CLIENT

REFRESH_S = 10.0  # of what is stored: how late a new consumer appears
KEPT_S = 1.0  # a measurement serves everyone who asks within this time; heartbeats are not more frequent
MEASURE_TIMEOUT_S = 1.5  # below the time that a collector of metrics has in all
CONSUMERS_AT_A_TIME = 100  # measured before other requests get their turn


@dataclass(frozen=True, slots=True)
class MeasuredPartition:
    cursor: int
    messages: int


@dataclass(frozen=True, slots=True)
class MeasuredConsumer:
    consumer_id: int
    topic: str
    name: str
    members: frozenset[str]
    partitions: Mapping[int, MeasuredPartition]

    @property
    def messages(self) -> int:
        return sum(partition.messages for partition in self.partitions.values())


@dataclass(frozen=True, slots=True)
class MeasuredLag:
    consumers: Sequence[MeasuredConsumer]
    not_measured: int  # consumers that have a name, beyond the limit
    at_s: float


def unread(offset: int, given_back: int, partition: CachedPartition) -> int:
    return max(0, partition.end_offset - max(offset, partition.beginning_offset)) + given_back


class ConsumerLag:
    """Runs on the event loop, except `refresh` and `measure_from_thread`."""

    def __init__(self, primary: Primary, cache: MetadataCache, cursors: Cursors, *, max_cursors: int) -> None:
        self._primary = primary
        self._cache = cache
        self._cursors = cursors
        self._max_cursors = max_cursors
        self._stored: tuple[Sequence[NamedConsumer], int] | None = None
        self._last: MeasuredLag | None = None
        self._measuring: asyncio.Task[MeasuredLag] | None = None

    def refresh(self) -> None:
        """A job, every REFRESH_S. While PostgreSQL is away the consumers of before go on being measured."""
        with self._primary.reading() as session:
            self._stored = stored.named_consumers(session, self._max_cursors)

    async def measure(self) -> MeasuredLag:
        now_s = asyncio.get_running_loop().time()
        if self._last is not None and now_s - self._last.at_s < KEPT_S:
            return self._last
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(self._measure(now_s))
        return await asyncio.shield(self._measuring)

    def measure_from_thread(self, loop: asyncio.AbstractEventLoop) -> MeasuredLag:
        """For a collector of metrics. Raises TimeoutError when the loop does not get to it in time."""
        return asyncio.run_coroutine_threadsafe(self.measure(), loop).result(MEASURE_TIMEOUT_S)

    async def _measure(self, now_s: float) -> MeasuredLag:
        if self._stored is None:
            await asyncio.to_thread(self.refresh)
        assert self._stored is not None
        consumers, named = self._stored
        measured: list[MeasuredConsumer] = []
        for number, consumer in enumerate(consumers):
            if number % CONSUMERS_AT_A_TIME == CONSUMERS_AT_A_TIME - 1:
                await asyncio.sleep(0)
            if (found := self._measure_consumer(consumer)) is not None:
                measured.append(found)
        self._last = MeasuredLag(measured, named - len(consumers), now_s)
        return self._last

    def _measure_consumer(self, consumer: NamedConsumer) -> MeasuredConsumer | None:
        """None when its topic was deleted. Partitions whose leader has not reported to this process yet are left out:
        where they end is not known, and a lag of 0 would be wrong."""
        topic = self._cache.topics_by_id.get(str(consumer.topic_id))
        if topic is None:
            return None
        loaded = self._cursors.loaded_statuses(consumer.consumer_id)
        if loaded is None:
            loaded = {
                c.partition_id: CursorStatus(c.offset, len(c.given_back), None, NO_CLIENT) for c in consumer.cursors
            }
        partitions = {
            partition_id: MeasuredPartition(status.offset, unread(status.offset, status.given_back, partition))
            for partition_id, status in loaded.items()
            if (partition := topic.partition(partition_id)).configuration is not None
        }
        members = frozenset(status.member for status in loaded.values() if status.member is not None)
        return MeasuredConsumer(consumer.consumer_id, topic.name, consumer.name, members, partitions)


def worst_first(lag: MeasuredLag, limit: int) -> LagList:
    ordered = sorted(lag.consumers, key=lambda each: (-each.messages, each.topic, each.name))
    return LagList(
        consumers=[
            NamedConsumerLag(
                consumer_id=each.consumer_id,
                topic=each.topic,
                name=each.name,
                messages=each.messages,
                members=len(each.members),
            )
            for each in ordered[:limit]
        ],
        others=max(0, len(ordered) - limit),
        not_measured=lag.not_measured,
    )


def add_lag_routes(router: Router, lag: ConsumerLag) -> None:
    async def lags(request: HttpRequest) -> HttpResponse:
        query = request.parse_query(ListLag)
        return HttpResponse.json(worst_first(await lag.measure(), query.limit))

    router.add(internal.LAGS, lags)
