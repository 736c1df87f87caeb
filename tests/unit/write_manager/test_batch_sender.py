"""Batches sent to scripted brokers: which share a call, which are retried, which delay others."""

import asyncio
import itertools
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import structlog
import uvloop
from structlog.testing import capture_logs

from myqueue.protocol import batch as wire
from myqueue.protocol import internal
from myqueue.protocol.batch import Message
from myqueue.protocol.errors import DiskFull, MyQueueError, NoLeader, NotLeader
from service.async_calls import AsyncCaller, CallResponse
from service.calls import NoAnswer
from write_manager.accumulator import AppendOutcome, PendingMessage, ProduceRequest
from write_manager.batch_sender import BatchSender
from write_manager.brokers import Brokers as BrokerRegistry
from write_manager.metadata_cache import CachedPartition, CachedTopic

Batch = tuple[int, list[bytes]]  # partition, values
Script = Callable[[str, list[Batch]], Awaitable[list[dict[str, Any]]]]


class Brokers:
    """Stands in for the network: decodes each call and answers as the script says."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.calls: list[tuple[str, list[Batch]]] = []

    async def call(self, _: str, url: str, body: bytes, **__: object) -> CallResponse:
        endpoint = url.removesuffix(internal.APPEND.path)
        batches: list[Batch] = []
        at = 0
        while at < len(body):
            (size,) = internal.APPEND_ITEM.unpack_from(body, at)
            header, data, _records = wire.split(
                body[at + internal.APPEND_ITEM.size : at + internal.APPEND_ITEM.size + size]
            )
            batches.append((header.partition, [m.value for m in wire.messages_of(wire.validate(header, data))]))
            at += internal.APPEND_ITEM.size + size
        self.calls.append((endpoint, batches))
        answers = await self._script(endpoint, batches)
        return CallResponse(200, {}, json.dumps({"status": "success", "answers": answers}).encode())


class Three:
    """Three live brokers."""

    def endpoints(self, leader: int | None, replicas: Sequence[int]) -> list[str]:
        return [f"http://b{broker}" for broker in sorted(replicas, key=lambda broker: broker != leader)]


_offsets = itertools.count()


def stored(batch: Batch) -> dict[str, Any]:
    results = [{"offset": next(_offsets)} for _ in batch[1]]
    return {"status": "success", "results": results, "append_time": 0, "end_offset": 0}


def failure(error: MyQueueError) -> dict[str, Any]:
    return {"error": error.to_body(None)}


class Site:
    def __init__(self, script: Script, leaders: Sequence[int] = (1, 1, 2, 3)) -> None:
        self.brokers = Brokers(script)
        partitions = [CachedPartition(number, leader, 1, (1, 2, 3), ()) for number, leader in enumerate(leaders)]
        self.topic = CachedTopic("t", uuid.uuid4(), 3, None, None, partitions)
        self.sender = BatchSender(
            cast(AsyncCaller, self.brokers),
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


async def store_all(_: str, batches: list[Batch]) -> list[dict[str, Any]]:
    await asyncio.sleep(0.01)
    return [stored(batch) for batch in batches]


def test_batches_for_one_broker_share_a_call_and_one_is_in_flight() -> None:
    async def main() -> None:
        site = Site(store_all)
        first = asyncio.gather(*(site.send(partition, b"1") for partition in range(4)))
        await asyncio.sleep(0.005)
        second = asyncio.gather(*(site.send(0, b"2") for _ in range(3)))
        for settled in (*await first, *await second):
            assert all(isinstance(result, int) for _, result in settled)
        by_broker = sorted(site.brokers.calls[:3])
        assert by_broker == [
            ("http://b1", [(0, [b"1"]), (1, [b"1"])]),
            ("http://b2", [(2, [b"1"])]),
            ("http://b3", [(3, [b"1"])]),
        ]
        assert site.brokers.calls[3:] == [("http://b1", [(0, [b"2", b"2", b"2"])])]

    uvloop.run(main())


def test_the_named_leader_is_tried_next() -> None:
    async def script(endpoint: str, batches: list[Batch]) -> list[dict[str, Any]]:
        if endpoint == "http://b3":
            return [stored(batch) for batch in batches]
        return [failure(NotLeader(details={"leader": 3})) for _ in batches]

    async def main() -> None:
        site = Site(script)
        [(_, result)] = await site.send(0, b"1")
        assert isinstance(result, int)
        assert [endpoint for endpoint, _ in site.brokers.calls] == ["http://b1", "http://b3"]
        assert site.topic.partitions[0].leader == 3

    uvloop.run(main())


def test_without_a_leader_everyone_hears_so_in_time_and_the_outcome_is_kept() -> None:
    turns = itertools.count()

    async def script(_: str, batches: list[Batch]) -> list[dict[str, Any]]:
        if next(turns) == 0:
            raise NoAnswer(outcome="unknown")
        return [failure(NotLeader()) for _ in batches]

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


def test_a_partition_in_trouble_does_not_hold_up_its_neighbours_for_long() -> None:
    async def script(_: str, batches: list[Batch]) -> list[dict[str, Any]]:
        if any(partition == 0 for partition, _ in batches):
            await asyncio.sleep(0.1)
        return [failure(NotLeader()) if batch[0] == 0 else stored(batch) for batch in batches]

    async def main() -> None:
        site = Site(script, leaders=(1, 1, 1, 1))
        stuck = asyncio.create_task(site.send(0, b"x"))
        await asyncio.gather(*(site.send(partition, b"1") for partition in (1, 2, 3)))
        for partition, number in itertools.product((1, 2, 3), range(3)):
            await site.send(partition, b"%d" % number)
        await stuck
        alone = [batches for _, batches in site.brokers.calls[1:] if any(p == 0 for p, _ in batches)]
        assert alone
        assert all(len(batches) == 1 for batches in alone)

    uvloop.run(main())


def test_what_cannot_succeed_is_refused_at_once_and_a_defect_too() -> None:
    replies: list[Any] = [[failure(DiskFull())], ["nonsense"], []]

    async def script(_: str, batches: list[Batch]) -> list[dict[str, Any]]:
        if replies:
            answer: list[dict[str, Any]] = replies.pop(0)
            return answer
        return [stored(batch) for batch in batches]

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
    async def script(_: str, batches: list[Batch]) -> list[dict[str, Any]]:
        await asyncio.sleep(0.45)  # longer than one waits for a leader
        return [stored(batch) for batch in batches]

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


def test_large_batches_do_not_share_a_call() -> None:
    async def main() -> None:
        site = Site(store_all, leaders=(1, 1, 1, 1))
        value = bytes(1 << 20)
        results = await asyncio.gather(*(site.send(partition, value) for partition in range(4)))
        assert all(isinstance(settled[0].result, int) for settled in results)
        assert sorted(len(batches) for _, batches in site.brokers.calls) == [2, 2]

    uvloop.run(main())
