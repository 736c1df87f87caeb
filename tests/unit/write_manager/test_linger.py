"""How long the next group waits for the clients that were just answered."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from write_manager import linger
from write_manager.linger import Linger


class Group:
    def __init__(self) -> None:
        self.waiting = 0
        self.ends = 0
        self.linger = Linger(lambda: self.waiting, self._end)

    def _end(self) -> None:
        self.ends += 1

    def arrive(self) -> None:
        self.waiting += 1
        self.linger.arrived()


@pytest.fixture(autouse=True)
def long_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linger, "MAX_LINGER_S", 60.0)
    monkeypatch.setattr(linger, "MAX_GAP_S", 60.0)


def run(play: Callable[[Group], Awaitable[None]]) -> None:
    async def main() -> None:
        await play(Group())

    uvloop.run(main())


def test_it_ends_with_the_last_one_that_was_expected() -> None:
    async def play(group: Group) -> None:
        group.waiting = 1
        group.linger.begin(3, 30.0)
        group.arrive()
        assert group.ends == 0
        group.arrive()
        assert group.ends == 1
        group.arrive()
        assert group.ends == 1, "it is over"

    run(play)


def test_it_does_not_begin_when_all_are_there() -> None:
    async def play(group: Group) -> None:
        group.waiting = 2
        group.linger.begin(2, 30.0)
        assert group.ends == 1

    run(play)


def test_it_ends_when_nothing_more_arrives() -> None:
    async def play(group: Group) -> None:
        group.waiting = 1
        group.linger.begin(5, 0.1)
        async with asyncio.timeout(10):
            while not group.ends:
                await asyncio.sleep(0.01)

    run(play)


def test_while_nothing_waits_it_goes_on_to_its_end_but_not_beyond() -> None:
    async def play(group: Group) -> None:
        group.linger.begin(5, 0.4)
        await asyncio.sleep(0.6)
        assert group.ends == 0
        async with asyncio.timeout(10):
            while not group.ends:
                await asyncio.sleep(0.01)
        group.linger.begin(1, 30.0)
        group.arrive()
        assert group.ends == 2, "and can begin again"

    run(play)
