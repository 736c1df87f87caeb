"""Read ahead: a request takes one message, so a broker is asked for the next ones of its batch with it.

Only while a partition is read message after message. Committed messages do not change, so they are kept for a moment;
which one a request gets is decided by its claim alone.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from myqueue.protocol import batch
from myqueue.protocol.answers import Consumed
from myqueue.protocol.dedup_records import decode_dedup_records
from myqueue.protocol.errors import NoLeader
from read_manager.replica_fetch import ReplicaFetcher

READ_AHEAD = 64  # messages
# Shorter than it takes until a partition that lost all its replicas begins again at offset 0.
KEPT_S = 1.0
MAX_KEPT_BYTES = 16 << 20
MESSAGE_OVERHEAD_BYTES = 1 << 10  # in memory

_Partition = tuple[str, int]  # topic id, number


class ReadAhead:
    """Used on the event loop."""

    def __init__(self, replicas: ReplicaFetcher, *, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._replicas = replicas
        self._max_kept_bytes = max_kept_bytes
        # With the time until which each is kept, the oldest first.
        self._kept: OrderedDict[tuple[_Partition, int], tuple[Consumed, float]] = OrderedDict()
        self._kept_bytes = 0
        # The first offset of a fetch of several; its result is the error when no replica answered.
        self._fetching: dict[_Partition, tuple[int, asyncio.Future[NoLeader | None]]] = {}
        self._last_fetch: OrderedDict[_Partition, tuple[int, float]] = OrderedDict()  # offset and time

    async def message(self, topic_id: str, partition_id: int, offset: int, endpoints: Sequence[str]) -> Consumed:
        partition = (topic_id, partition_id)
        found = self._find(partition, offset)
        if found is not None:
            return found
        first, fetched = self._fetching.get(partition, (0, None))
        if fetched is not None and first <= offset < first + READ_AHEAD:
            problem = await asyncio.shield(fetched)
            if problem is not None:
                raise NoLeader(problem.message, retry_after_s=problem.retry_after_s)  # it has waited as long
            found = self._find(partition, offset)
            if found is not None:
                return found
        return await self._fetch(partition, offset, endpoints)

    def _find(self, partition: _Partition, offset: int) -> Consumed | None:
        kept = self._kept.get((partition, offset))
        return kept[0] if kept is not None and kept[1] > self._now_s() else None

    async def _fetch(self, partition: _Partition, offset: int, endpoints: Sequence[str]) -> Consumed:
        if not self._in_sequence(partition, offset) or partition in self._fetching:
            return _messages(await self._replicas.message(*partition, offset, endpoints), partition[1])[0]
        fetched: asyncio.Future[NoLeader | None] = asyncio.get_running_loop().create_future()
        self._fetching[partition] = (offset, fetched)
        problem: NoLeader | None = None
        try:
            data = await self._replicas.message(*partition, offset, endpoints, limit=READ_AHEAD)
            messages = _messages(data, partition[1])
            self._keep(partition, messages)
            return messages[0]
        except NoLeader as error:
            problem = error
            raise
        finally:
            del self._fetching[partition]
            fetched.set_result(problem)

    def _in_sequence(self, partition: _Partition, offset: int) -> bool:
        """Whether a message shortly before it was fetched a moment ago."""
        last, fetched_s = self._last_fetch.pop(partition, (-1, 0.0))
        now_s = self._now_s()
        self._last_fetch[partition] = (offset, now_s)
        while len(self._last_fetch) > 1 and now_s - next(iter(self._last_fetch.values()))[1] > KEPT_S:
            self._last_fetch.popitem(last=False)
        return now_s - fetched_s <= KEPT_S and 0 <= last <= offset <= last + 2 * READ_AHEAD

    def _keep(self, partition: _Partition, messages: Sequence[Consumed]) -> None:
        now_s = self._now_s()
        for message in messages[1:]:
            key = (partition, message.offset)
            self._drop(key)
            self._kept[key] = (message, now_s + KEPT_S)
            self._kept_bytes += _size(message)
        while self._kept:
            key, (_, until_s) = next(iter(self._kept.items()))
            if until_s > now_s and self._kept_bytes <= self._max_kept_bytes:
                break
            self._drop(key)

    def _drop(self, key: tuple[_Partition, int]) -> None:
        dropped = self._kept.pop(key, None)
        if dropped is not None:
            self._kept_bytes -= _size(dropped[0])

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def _size(message: Consumed) -> int:
    return len(message.message) + len(message.key or b"") + MESSAGE_OVERHEAD_BYTES


def _messages(data: bytes, partition_id: int) -> list[Consumed]:
    header, body, rest = batch.split(data)
    batch.check_body(header, body)
    producers = {record.position: record.producer_id for record in decode_dedup_records(rest, header.count)}
    found = []
    for position, message in enumerate(batch.messages_of(batch.decode_body(body))):
        producer_id = producers.get(position, header.producer_id)
        found.append(
            Consumed.model_construct(
                message=message.value,
                key=message.key,
                partition_id=partition_id,
                offset=header.base_offset + position,
                timestamp=message.timestamp,
                producer_id=None if producer_id == batch.NO_PRODUCER else producer_id,
            )
        )
    return found
