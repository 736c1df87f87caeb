"""Which producers and consumers are in memory, and which uses of them are to be stored."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from write_manager.identity_cache import IdentityCache


@dataclass(frozen=True)
class Someone:
    id: int
    name: str | None = None


class Database:
    def __init__(self, **silent_s: float) -> None:
        self.rows = {int(id[1:]): (Someone(int(id[1:])), silent) for id, silent in silent_s.items()}
        self.reads: list[int] = []
        self.is_open = threading.Event()
        self.is_open.set()

    def read(self, id: int) -> tuple[Someone, float] | None:
        self.reads.append(id)
        found = self.rows.get(id)
        assert self.is_open.wait(10)
        return found


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def with_identities(
    database: Database,
    main: Callable[[IdentityCache[Someone], Clock], Coroutine[Any, Any, None]],
    max_entries: int = 3,
) -> None:
    clock = Clock()
    with ThreadPoolExecutor(2) as threads:
        cache: IdentityCache[Someone] = IdentityCache(
            database.read, threads, stamp_after_s=50, max_entries=max_entries, idle_s=600, now_s=clock
        )
        asyncio.run(main(cache, clock))


def test_those_in_use_are_in_memory_and_the_others_one_query_away() -> None:
    database = Database(_1=0, _2=0, _3=0, _4=0)

    async def main(cache: IdentityCache[Someone], clock: Clock) -> None:
        for id in (1, 2, 3, 1, 4):
            assert await cache.find(id) == Someone(id)
        assert [id in cache for id in (1, 2, 3, 4)] == [True, False, True, True], "the least recently used is evicted"
        assert await cache.find(2) == Someone(2)
        clock.now_s += 599
        cache.cached(4)
        clock.now_s += 2
        cache.sweep()
        assert [id in cache for id in (1, 2, 3, 4)] == [False, False, False, True], "the idle ones are evicted"

    with_identities(database, main)
    assert database.reads == [1, 2, 3, 4, 2]


def test_who_asks_at_the_same_time_shares_a_query_and_what_is_absent_is_asked_again() -> None:
    database = Database()

    async def main(cache: IdentityCache[Someone], clock: Clock) -> None:
        database.is_open.clear()
        asking = [asyncio.create_task(cache.find(7)) for _ in range(20)]
        await asyncio.sleep(0)
        database.is_open.set()
        assert await asyncio.gather(*asking) == [None] * 20
        assert database.reads == [7]
        cache.add(7, Someone(7, "new"))
        assert await cache.find(7) == Someone(7, "new")
        assert await cache.find(8) is None
        assert await cache.find(8) is None
        assert database.reads == [7, 8, 8]

    with_identities(database, main)


def test_what_is_deleted_while_it_is_read_is_not_kept() -> None:
    database = Database(_7=0)

    async def main(cache: IdentityCache[Someone], clock: Clock) -> None:
        database.is_open.clear()
        asking = asyncio.create_task(cache.find(7))
        async with asyncio.timeout(10):
            while not database.reads:
                await asyncio.sleep(0.001)
        cache.remove([7])
        del database.rows[7]
        database.is_open.set()
        assert await asking == Someone(7), "who asked before gets what was there"
        assert await cache.find(7) is None

    with_identities(database, main)


def test_uses_are_stored_now_and_then_and_only_of_those_without_a_name() -> None:
    database = Database(_1=0, _2=49, _3=51)

    async def main(cache: IdentityCache[Someone], clock: Clock) -> None:
        cache.add(9, Someone(9, "named"))
        for id in (1, 2, 3, 9):
            await cache.find(id)
        assert cache.take_used() == {3}
        cache.put_back_used([3])
        clock.now_s += 2
        for id in (1, 2, 3, 9):
            await cache.find(id)
        assert cache.take_used() == {2, 3}
        assert cache.take_used() == set()
        clock.now_s += 1000
        for _ in range(3):
            for id in (1, 9):
                await cache.find(id)
        assert cache.take_used() == {1}

    with_identities(database, main, max_entries=4)
