"""The budget is never exceeded, and every waiting request gets its share."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from read_manager.memory_budget import MemoryBudget

LIMIT = 100


@given(st.lists(st.tuples(st.integers(0, 150), st.booleans()), max_size=30))
def test_the_limit_holds_and_every_waiting_request_is_served(wishes: list[tuple[int, bool]]) -> None:
    async def test() -> None:
        budget, in_use, done = MemoryBudget(LIMIT), [0], list[int]()

        async def use(number: int, size: int) -> None:
            async with budget.reserved(size):
                in_use[0] += min(size, LIMIT)
                try:
                    assert in_use[0] <= LIMIT
                    await asyncio.sleep(0)
                finally:
                    in_use[0] -= min(size, LIMIT)
                done.append(number)

        tasks = [asyncio.create_task(use(number, size)) for number, (size, _) in enumerate(wishes)]
        await asyncio.sleep(0)
        for task, (_, gives_up) in zip(tasks, wishes, strict=True):
            if gives_up:
                task.cancel()
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks, return_exceptions=True)
            async with budget.reserved(LIMIT):  # all of it is free again
                assert in_use == [0]
        assert {number for number, (_, gives_up) in enumerate(wishes) if not gives_up} <= set(done)

    asyncio.run(test())
