"""Batches sent to scripted brokers: which are in flight, which are retried, which delay others."""

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import structlog
import uvloop
from structlog.testing import capture_logs

from myqueue.protocol import batch as wire
from myqueue.protocol.append_frames import AppendedOffsets
from myqueue.protocol.batch import Message
from myqueue.protocol.errors import DiskFull, MyQueueError, NoLeader, NotLeader
from service.calls import NoAnswer
from write_manager.accumulator import AppendOutcome, PendingMessage, ProduceRequest
from write_manager.append_connections import AppendConnections
from write_manager.batch_sender import BatchSender
from write_manager.brokers import Brokers as BrokerRegistry
from write_manager.metadata_cache import CachedPartition, CachedTopic

Batch = tuple[int, list[bytes]]  # partition, values
Script = Callable[[str, Batch], Awaitable[AppendedOffsets]]


class Brokers:
    """Stands in for the network: decodes each batch and answers as the script says."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.calls: list[tuple[str, Batch]] = []

    async def append(self, endpoint: str, batch: bytes, _: float, __: str | None) -> AppendedOffsets:
        header, data, _records = wire.split(batch)
        sent = header.partition, [m.value for m in wire.messages_of(wire.validate(header, data))]
        self.calls.append((endpoint, sent))
        return await self._script(endpoint, sent)


class Three:
    """Three live brokers."""

    def endpoints(self, leader: int | None, replicas: Sequence[int]) -> list[str]:
        return [f"http://b{broker}" for broker in sorted(replicas, key=lambda broker: broker != leader)]


_offsets = itertools.count()


def stored(batch: Batch) -> AppendedOffsets:
    return AppendedOffsets(0, [next(_offsets) for _ in batch[1]])


class Site:
    def __init__(self, script: Script, leaders: Sequence[int] = (1, 1, 2, 3)) -> None:
        self.brokers = Brokers(script)
        partitions = [CachedPartition(number, leader, 1, (1, 2, 3), ()) for number, leader in enumerate(leaders)]
        self.topic = CachedTopic("t", uuid.uuid4(), 3, None, None, partitions)
        self.sender = BatchSender(
            cast(AppendConnections, self.brokers),
            cast(BrokerRegistry, Three()),
            structlog.get_logger(),
            leader_wait_s=0.3,
            timeout_s=0.5,
        )

    async def send(self, partition: int | None, *values: bytes) -> list[AppendOutcome]:
        done: asyncio.Future[list[AppendOutcome]] = asyncio.get_running_loop().create_future()
        now_s = asyncio.get_running_loop().time()
        request = ProduceRequest(len(values), done.set_result, producer_id=0, received_s=now_s)
        for position, value in enumerate(values):
            pending = PendingMessage(Message(value), partition, 0, len(value), uuid.uuid4().bytes)
            pending.request, pending.position = request, position
            self.sender.add(self.topic, pending)
        async with asyncio.timeout(5):
            return await done


async def store_all(_: str, batch: Batch) -> AppendedOffsets:
    await asyncio.sleep(0.01)
    return stored(batch)


def test_one_batch_of_a_partition_is_in_flight() -> None:
    async def main() -> None:
        site = Site(store_all)
        first = asyncio.gather(*(site.send(partition, b"1") for partition in range(4)))
        await asyncio.sleep(0.005)
        second = asyncio.gather(*(site.send(0, b"2") for _ in range(3)))
        for settled in (*await first, *await second):
            assert all(isinstance(result, int) for _, result in settled)
        assert sorted(site.brokers.calls[:4]) == [
            ("http://b1", (0, [b"1"])),
            ("http://b1", (1, [b"1"])),
            ("http://b2", (2, [b"1"])),
            ("http://b3", (3, [b"1"])),
        ]
        assert site.brokers.calls[4:] == [("http://b1", (0, [b"2", b"2", b"2"]))]

    uvloop.run(main())


def test_the_named_leader_is_tried_next() -> None:
    async def script(endpoint: str, batch: Batch) -> AppendedOffsets:
        if endpoint == "http://b3":
            return stored(batch)
        raise NotLeader(details={"leader": 3})

    async def main() -> None:
        site = Site(script)
        [(_, result)] = await site.send(0, b"1")
        assert isinstance(result, int)
        assert [endpoint for endpoint, _ in site.brokers.calls] == ["http://b1", "http://b3"]
        assert site.topic.partitions[0].leader == 3

    uvloop.run(main())


def test_without_a_leader_everyone_hears_so_in_time_and_the_outcome_is_kept() -> None:
    turns = itertools.count()

    async def script(_: str, __: Batch) -> AppendedOffsets:
        if next(turns) == 0:
            raise NoAnswer(outcome="unknown")
        raise NotLeader

    async def main() -> None:
        site = Site(script)
        started_s = asyncio.get_running_loop().time()
        early = asyncio.create_task(site.send(0, b"1"))
        await asyncio.sleep(0.05)
        late = asyncio.create_task(site.send(0, b"2"))
        [(_, first)], [(_, second)] = await early, await late
        assert isinstance(first, NoLeader)
        assert isinstance(second, NoLeader)
        assert (first.outcome, second.outcome) == ("unknown", "not_written")
        assert asyncio.get_running_loop().time() - started_s < 2
        [(_, third)] = await site.send(0, b"3")
        assert isinstance(third, NoLeader), "and the queue goes on"

    uvloop.run(main())


def test_a_partition_in_trouble_does_not_hold_up_its_neighbours() -> None:
    async def main() -> None:
        answered = asyncio.Event()

        async def script(_: str, batch: Batch) -> AppendedOffsets:
            if batch[0] == 0:
                await answered.wait()
            return stored(batch)

        site = Site(script, leaders=(1, 1, 1, 1))
        stuck = asyncio.create_task(site.send(0, b"x"))
        for partition, number in itertools.product((1, 2, 3), range(3)):
            await site.send(partition, b"%d" % number)
        assert not stuck.done()
        answered.set()
        await stuck

    uvloop.run(main())


def test_what_cannot_succeed_is_refused_at_once_and_a_defect_too() -> None:
    replies: list[Any] = [DiskFull(), "nonsense", AppendedOffsets(0, [])]

    async def script(_: str, batch: Batch) -> AppendedOffsets:
        if not replies:
            return stored(batch)
        reply = replies.pop(0)
        if isinstance(reply, MyQueueError):
            raise reply
        return cast(AppendedOffsets, reply)

    async def main() -> None:
        site = Site(script)
        [(_, full)] = await site.send(0, b"1")
        assert isinstance(full, DiskFull)
        for _ in range(2):
            with capture_logs():
                [(_, defect)] = await site.send(0, b"2")
            assert isinstance(defect, MyQueueError)
            assert (defect.error_code, defect.outcome) == (50001, "unknown")
        [(_, result)] = await site.send(0, b"3")
        assert isinstance(result, int)

    uvloop.run(main())


def test_a_message_that_cannot_be_encoded_harms_no_other_partition() -> None:
    async def main() -> None:
        site = Site(store_all, leaders=(1, 1, 1, 1))
        bad = cast(bytes, "no bytes at all")
        with capture_logs() as logged:
            answers = await asyncio.gather(site.send(0, bad), *(site.send(partition, b"1") for partition in (1, 2, 3)))
        assert [line["event"] for line in logged] == ["defect"]
        [[(_, defect)], *others] = answers
        assert isinstance(defect, MyQueueError)
        assert (defect.error_code, defect.outcome) == (50001, "unknown")
        assert all(isinstance(settled[0].result, int) for settled in others)
        [(_, after)] = await site.send(0, b"2")
        assert isinstance(after, int)

    uvloop.run(main())


def test_what_waited_too_long_is_not_sent_any_more() -> None:
    async def script(_: str, batch: Batch) -> AppendedOffsets:
        await asyncio.sleep(0.45)  # longer than one waits for a leader
        return stored(batch)

    async def main() -> None:
        site = Site(script)
        first = asyncio.create_task(site.send(0, b"1"))
        await asyncio.sleep(0.02)
        late = await site.send(0, b"2")
        assert isinstance((await first)[0].result, int)
        assert isinstance(late[0].result, NoLeader)
        assert late[0].result.outcome == "not_written"
        assert len(site.brokers.calls) == 1

    uvloop.run(main())
