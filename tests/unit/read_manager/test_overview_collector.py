"""Streams of overviews: each follower gets each overview once."""

import asyncio
from contextlib import aclosing
from typing import Any, cast

import pytest

from read_manager import overview_collector
from read_manager.overview_collector import OverviewCollector

INTERVAL_S = 0.4


class Numbered(OverviewCollector):
    """Collects numbers."""

    def __init__(self) -> None:
        nothing = cast(Any, None)
        super().__init__(nothing, nothing, (), nothing)
        self.collected = 0

    async def _collect(self, began_s: float) -> bytes:
        self.collected += 1
        body = str(self.collected).encode()
        self._kept = body, began_s
        return body

    def expire(self) -> None:
        self._kept = None


async def next_number(stream: Any) -> int:
    return int((await anext(stream)).partition(b"data: ")[2])


async def followed() -> list[int]:
    collector = Numbered()
    async with aclosing(cast(Any, collector._follow())) as first:
        await next_number(first)
        waiting = asyncio.create_task(next_number(first))
        await asyncio.sleep(INTERVAL_S / 2)
        # In the middle of an interval somebody else comes, for whom the last overview is too old.
        collector.expire()
        async with aclosing(cast(Any, collector._follow())) as second:
            numbers = [await next_number(second) for _ in range(3)]
        await waiting
    return numbers


def test_no_overview_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_collector, "INTERVAL_S", INTERVAL_S)
    numbers = asyncio.run(followed())
    assert numbers == sorted(set(numbers))
