"""Messages without a partition: which go together, and to which partition."""

import asyncio
import uuid
from uuid import UUID

import pytest
import uvloop

from myqueue.protocol.batch import Message
from write_manager import linger, sticky_partitioner
from write_manager.accumulator import PendingMessage, ProduceRequest
from write_manager.metadata_cache import CachedPartition, CachedTopic
from write_manager.sticky_partitioner import BATCH_TIMEOUT_S, StickyPartitioner


class Bench:
    """Four partitions that answer when the test says so."""

    def __init__(self) -> None:
        partitions = [CachedPartition(number, 1, 1, (1,), ()) for number in range(4)]
        self.topic = CachedTopic("t", uuid.uuid4(), 1, None, None, partitions)
        self.partitioner = StickyPartitioner(self._put)
        self.went: list[tuple[int, list[bytes]]] = []
        self._in_flight: dict[int, list[PendingMessage]] = {}

    def _put(self, _: UUID, partition: CachedPartition, pending: PendingMessage) -> None:
        if not self._in_flight.get(partition.partition_id):
            self.went.append((partition.partition_id, []))
        self.went[-1][1].append(pending.message.value)
        self._in_flight.setdefault(partition.partition_id, []).append(pending)

    def send(self, *values: bytes) -> None:
        for value in values:
            pending = PendingMessage(Message(value), None, 0, 1)
            pending.request, pending.position = ProduceRequest(1, lambda _: None), 0
            self.partitioner.add(self.topic, pending)

    def answer(self, partition: int) -> None:
        for pending in self._in_flight.pop(partition):
            pending.complete(partition, 0)


async def passed(seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds)
    await asyncio.sleep(0)


def test_a_lone_client_goes_round_without_waiting() -> None:
    async def main() -> None:
        bench = Bench()
        for number in range(6):
            bench.send(b"%d" % number)
            await passed()
            bench.answer(number % 4)
        assert bench.went == [(number % 4, [b"%d" % number]) for number in range(6)]

    uvloop.run(main())


def test_waiting_messages_go_together_once_the_batch_before_is_answered() -> None:
    async def main() -> None:
        bench = Bench()
        bench.send(b"a", b"b")
        await passed()
        bench.send(b"c")
        await passed()
        bench.send(b"d")
        assert bench.went == [(0, [b"a", b"b"])]
        bench.answer(0)
        bench.send(b"a2", b"b2")  # the answered clients have sent again: nothing more to wait for
        await passed()
        assert bench.went[1:] == [(1, [b"c", b"d", b"a2", b"b2"])]

    uvloop.run(main())


def test_a_client_that_sends_no_more_is_not_waited_for_long() -> None:
    async def main() -> None:
        bench = Bench()
        bench.send(b"a", b"b")
        await passed(0.01)
        bench.send(b"c")
        bench.answer(0)
        await passed(0.1)
        assert bench.went[1:] == [(1, [b"c"])]
        bench.answer(1)
        await passed(0.1)
        bench.send(b"d")
        await passed()
        assert bench.went[2:] == [(2, [b"d"])], "a lone client again"

    uvloop.run(main())


def test_a_batch_waits_for_answered_clients_as_long_as_they_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sticky_partitioner, "BATCH_TIMEOUT_S", 60.0)
    monkeypatch.setattr(linger, "MAX_LINGER_S", 60.0)
    monkeypatch.setattr(linger, "MAX_GAP_S", 60.0)

    async def main() -> None:
        bench = Bench()
        bench.send(b"a", b"b", b"c")
        await passed(0.4)
        bench.answer(0)
        for value in (b"a2", b"b2"):
            await passed(0.25)
            bench.send(value)
        await passed(0.1)
        assert bench.went[1:] == [], "one is still to come"
        bench.send(b"c2")
        await passed()
        assert bench.went[1:] == [(1, [b"a2", b"b2", b"c2"])]

    uvloop.run(main())


def test_a_partition_that_does_not_answer_does_not_delay_the_others() -> None:
    async def main() -> None:
        bench = Bench()
        bench.send(b"a")
        await passed()
        bench.send(b"b")
        await passed(2 * BATCH_TIMEOUT_S)
        assert bench.went == [(0, [b"a"]), (1, [b"b"])]
        bench.answer(0)  # late, and of no consequence
        bench.answer(1)
        bench.send(b"c")
        await passed(0.1)
        assert bench.went[2:] == [(2, [b"c"])]

    uvloop.run(main())


def test_partitions_rotate() -> None:
    topic = Bench().topic
    assert [topic.next_partition().partition_id for _ in range(6)] == [0, 1, 2, 3, 0, 1]
