"""Those who wait for a partition to grow are woken when it has, and only then."""

import asyncio

import pytest

from broker.long_poll import LongPolls, OffsetWaiters
from myqueue.protocol.errors import Overloaded


def test_only_those_whose_offset_is_passed_are_woken() -> None:
    async def play() -> list[int]:
        waiting, waiters = LongPolls(100), OffsetWaiters()
        woken: list[int] = []

        async def wait(offset: int) -> None:
            await waiting.wait([(waiters, offset)], 30)
            woken.append(offset)

        tasks = [asyncio.create_task(wait(offset)) for offset in range(100)]
        await asyncio.sleep(0)
        assert len(waiters) == len(waiting) == 100
        waiters.grown(0)
        waiters.grown(60)
        for _ in range(10):
            await asyncio.sleep(0)
        assert sorted(woken) == list(range(60))
        assert len(waiters) == len(waiting) == 40
        waiting.stop()
        await asyncio.gather(*tasks)
        assert len(waiters) == len(waiting) == 0
        await waiting.wait([(waiters, 5)], 30)  # nobody waits any more
        return woken

    assert sorted(asyncio.run(play())) == list(range(100))


def test_time_is_up_and_a_request_that_is_given_up_leaves_nothing_behind() -> None:
    async def play() -> None:
        waiting, waiters = LongPolls(100), OffsetWaiters()
        await waiting.wait([(waiters, 1)], 0.01)
        task = asyncio.create_task(waiting.wait([(waiters, 1)], 30))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(waiters) == len(waiting) == 0

    asyncio.run(play())


def test_one_of_several_partitions_is_enough() -> None:
    async def play() -> None:
        waiting, one, two = LongPolls(100), OffsetWaiters(), OffsetWaiters()
        task = asyncio.create_task(waiting.wait([(one, 3), (two, 7)], 30))
        await asyncio.sleep(0)
        one.grown(3)
        await asyncio.sleep(0)
        assert not task.done()
        two.grown(8)
        await task
        assert len(one) == len(two) == 0

    asyncio.run(play())


def test_a_partition_that_goes_lets_everybody_go() -> None:
    async def play() -> None:
        waiting, waiters = LongPolls(100), OffsetWaiters()
        tasks = [asyncio.create_task(waiting.wait([(waiters, 0)], 30)) for _ in range(100)]
        await asyncio.sleep(0)
        waiters.release()
        await asyncio.gather(*tasks)

    asyncio.run(play())


def test_no_more_than_so_many() -> None:
    async def play() -> None:
        waiting, waiters = LongPolls(1), OffsetWaiters()
        task = asyncio.create_task(waiting.wait([(waiters, 0)], 30))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await waiting.wait([(waiters, 0)], 30)
        waiters.grown(1)
        await task
        await waiting.wait([(waiters, 0)], 0.001)

    asyncio.run(play())
