"""Messages without a partition: who goes together, and where to."""

import asyncio
import uuid
from uuid import UUID

import uvloop

from myqueue.protocol.batch import Message
from write_manager.coalescing import Request, Waiting
from write_manager.directory import Partition, Topic
from write_manager.turns import PATIENCE_S, Turns


class Bench:
    """Four partitions that answer when the test says so."""

    def __init__(self) -> None:
        partitions = [Partition(number, 1, 1, (1,), ()) for number in range(4)]
        self.topic = Topic("t", uuid.uuid4(), 1, None, None, partitions)
        self.turns = Turns(self._put)
        self.went: list[tuple[int, list[bytes]]] = []
        self._open: dict[int, list[Waiting]] = {}

    def _put(self, _: UUID, partition: Partition, waiting: Waiting) -> None:
        if not self._open.get(partition.partition_id):
            self.went.append((partition.partition_id, []))
        self.went[-1][1].append(waiting.message.value)
        self._open.setdefault(partition.partition_id, []).append(waiting)

    def send(self, *values: bytes) -> None:
        for value in values:
            waiting = Waiting(Message(value), 0, 0, b"", 1, Request(1, lambda _: None), 0)
            self.turns.add(self.topic, waiting)

    def answer(self, partition: int) -> None:
        for waiting in self._open.pop(partition):
            waiting.settle(partition, 0)


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


def test_what_waits_goes_together_once_the_turn_before_is_answered() -> None:
    async def main() -> None:
        bench = Bench()
        bench.send(b"a", b"b")
        await passed()
        bench.send(b"c")
        await passed()
        bench.send(b"d")
        assert bench.went == [(0, [b"a", b"b"])]
        bench.answer(0)
        bench.send(b"a2", b"b2")  # whoever was answered is back: nothing more to wait for
        await passed()
        assert bench.went[1:] == [(1, [b"c", b"d", b"a2", b"b2"])]

    uvloop.run(main())


def test_who_does_not_come_back_is_not_awaited_for_long() -> None:
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


def test_a_partition_that_does_not_answer_keeps_nobody_from_the_others() -> None:
    async def main() -> None:
        bench = Bench()
        bench.send(b"a")
        await passed()
        bench.send(b"b")
        await passed(2 * PATIENCE_S)
        assert bench.went == [(0, [b"a"]), (1, [b"b"])]
        bench.answer(0)  # late, and of no consequence
        bench.answer(1)
        bench.send(b"c")
        await passed(0.1)
        assert bench.went[2:] == [(2, [b"c"])]

    uvloop.run(main())
