"""Single messages read ahead: which calls a broker gets, and that everyone gets the message of its offset."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from myqueue.protocol import batch as wire
from myqueue.protocol.batch import Message
from myqueue.protocol.dedup_records import DedupRecord, encode_dedup_records
from myqueue.protocol.errors import NoLeader, OffsetOutOfRange
from read_manager import read_ahead
from read_manager.read_ahead import READ_AHEAD, ReadAhead
from read_manager.replica_fetch import ReplicaFetcher

TOPIC = "9f1d3c52-8d0a-4f6e-9a51-1b7f3f3f9c11"
BATCH = 100  # messages of each stored batch


class Broker(ReplicaFetcher):
    """Partitions in batches of a hundred messages, whose values are partition and offset."""

    def __init__(self, size: int = 0) -> None:
        self.calls: list[tuple[int, int, int]] = []  # partition, offset, limit
        self.errors: list[Exception] = []
        self.delay_s = 0.0
        self._size = size

    async def message(
        self, topic_id: str, partition_id: int, offset: int, endpoints: Sequence[str], limit: int = 1
    ) -> bytes:
        self.calls.append((partition_id, offset, limit))
        await asyncio.sleep(self.delay_s)
        if self.errors:
            raise self.errors.pop(0)
        count = min(limit, BATCH - offset % BATCH)
        values = [b"%d %d" % (partition_id, offset + place) for place in range(count)]
        body = wire.encode_body([Message(value + bytes(self._size)) for value in values])
        header = wire.placed(wire.header_for(UUID(topic_id), partition_id, body, count), offset, 0)
        records = [DedupRecord(place, 3, 0, b"k" * 16) for place in range(0, count, 2)]
        return header.pack() + body + encode_dedup_records(records)


async def value_of(ahead: ReadAhead, partition: int, offset: int) -> bytes:
    found = await ahead.message(TOPIC, partition, offset, [])
    assert (found.partition_id, found.offset) == (partition, offset)
    return found.message


def test_a_partition_that_is_read_in_order_takes_few_calls() -> None:
    async def main() -> None:
        broker = Broker()
        ahead = ReadAhead(broker)
        for offset in range(250):
            for partition in (0, 1):
                assert await value_of(ahead, partition, offset) == b"%d %d" % (partition, offset)
        first = [call for call in broker.calls if call[0] == 0]
        assert first[:3] == [(0, 0, 1), (0, 1, READ_AHEAD), (0, 1 + READ_AHEAD, READ_AHEAD)]
        assert len(first) <= 7

    asyncio.run(main())


def test_a_single_message_is_read_alone() -> None:
    async def main() -> None:
        broker = Broker()
        ahead = ReadAhead(broker)
        for offset in (500, 7, 900):
            await value_of(ahead, 0, offset)
        assert [limit for _, _, limit in broker.calls] == [1, 1, 1]

    asyncio.run(main())


def test_requests_at_the_same_time_share_a_call_and_get_their_own_message() -> None:
    async def main() -> None:
        broker = Broker()
        ahead = ReadAhead(broker)
        await value_of(ahead, 0, 0)
        broker.delay_s = 0.01
        values = await asyncio.gather(*(value_of(ahead, 0, offset) for offset in range(1, 17)))
        assert values == [b"0 %d" % offset for offset in range(1, 17)]
        assert len(broker.calls) == 2

    asyncio.run(main())


def test_what_was_read_ahead_is_kept_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "KEPT_S", 0.2)

    async def main() -> None:
        broker = Broker()
        ahead = ReadAhead(broker)
        for offset in range(3):
            await value_of(ahead, 0, offset)
        assert len(broker.calls) == 2
        await asyncio.sleep(0.3)
        await value_of(ahead, 0, 3)
        assert broker.calls[2:] == [(0, 3, 1)]

    asyncio.run(main())


def test_memory_is_bounded() -> None:
    async def main() -> None:
        broker = Broker(size=1000)
        ahead = ReadAhead(broker, max_kept_bytes=40_000)
        for offset in range(200):
            assert (await value_of(ahead, 0, offset)).startswith(b"0 %d" % offset)
            assert ahead._kept_bytes <= 40_000
        assert len(broker.calls) > 6

    asyncio.run(main())


def test_producers_are_those_of_the_messages() -> None:
    async def main() -> None:
        ahead = ReadAhead(Broker())
        found = [await ahead.message(TOPIC, 0, offset, []) for offset in range(5)]
        assert [message.producer_id for message in found[1:]] == [3, None, 3, None]

    asyncio.run(main())


def test_without_a_replica_nobody_waits_twice_and_other_errors_are_not_shared() -> None:
    async def main() -> None:
        broker = Broker()
        ahead = ReadAhead(broker)
        await value_of(ahead, 0, 0)
        broker.delay_s = 0.01
        broker.errors = [NoLeader(retry_after_s=1)]
        failed = await asyncio.gather(*(value_of(ahead, 0, offset) for offset in (1, 2, 3)), return_exceptions=True)
        assert [type(error) for error in failed] == [NoLeader] * 3
        assert len({id(error) for error in failed}) == 3
        broker.errors = [OffsetOutOfRange(details={"beginning_offset": 5})]
        gone, found = await asyncio.gather(*(value_of(ahead, 0, offset) for offset in (4, 5)), return_exceptions=True)
        assert isinstance(gone, OffsetOutOfRange)
        assert found == b"0 5"

    asyncio.run(main())


def test_a_cancelled_request_does_not_cancel_those_that_wait_for_its_fetch() -> None:
    async def main() -> None:
        broker = Broker()
        ahead = ReadAhead(broker)
        await value_of(ahead, 0, 0)
        broker.delay_s = 0.05
        first = asyncio.create_task(value_of(ahead, 0, 1))
        await asyncio.sleep(0)
        second = asyncio.create_task(value_of(ahead, 0, 2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == b"0 2"

    asyncio.run(main())
