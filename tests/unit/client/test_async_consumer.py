"""The consumer of an event loop: the same core, nothing lost by a cancellation, and no thread for each."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from myqueue import ConsumerClosed, Message, OffsetOutOfRange, RetryPolicy, Unavailable
from myqueue.aio import AsyncConsumer
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reply, ScriptedServer, failure

QUICK = RetryPolicy(deadline_s=2.0, first_pause_s=0.001, longest_pause_s=0.01)
POLL = "/v1/consumers/5/poll"


def consumer(server: ScriptedServer, **settings: Any) -> AsyncConsumer:
    return AsyncConsumer(server.url, topic="orders", name="billing", start="earliest", **({"retry": QUICK} | settings))


async def until(look: Callable[[], object], within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def texts(reader: AsyncConsumer) -> list[str]:
    found: list[str] = []
    while (message := await reader.poll(0)) is not None:
        found.append(message.text)
    return found


def test_it_reads_commits_and_gives_back(server: ScriptedServer) -> None:
    server.answer = cluster = MemoryCluster(partitions=20)
    for number in range(100):
        cluster.put(f"{number}-a", f"{number}-b", partition=number % 20, codec=number % 3)

    async def read() -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        async with consumer(server) as reader:
            assert await reader.size() == 200
            count = 0
            async for message in reader:
                found.setdefault(message.partition, []).append(message.text)
                count += 1
                if count == 200:
                    break
        return found

    found = asyncio.run(read())
    assert found == {p: [f"{n}-{x}" for n in range(p, 100, 20) for x in "ab"] for p in range(20)}
    assert cluster.cursors == [10] * 20
    assert cluster.leases == {}


def test_a_message_that_comes_during_the_wait_wakes_it(server: ScriptedServer, cluster: MemoryCluster) -> None:
    async def read() -> None:
        async with consumer(server) as reader:
            assert await reader.poll(0) is None
            assert await reader.poll(0.2) is None
            for text in "abc":
                asyncio.get_running_loop().call_later(0.05, cluster.put, text)
                message = await reader.poll(5)
                assert message is not None
                assert message.text == text

    asyncio.run(read())


def test_a_cancelled_poll_loses_and_repeats_nothing(server: ScriptedServer, cluster: MemoryCluster) -> None:
    async def read() -> list[str]:
        found: list[str] = []
        async with consumer(server) as reader:
            assert await reader.poll(0) is None
            for number in range(60):
                poll = asyncio.create_task(reader.poll())
                cluster.put(str(number))
                await asyncio.sleep(0.002 * (number % 8))
                poll.cancel()
                with suppress(asyncio.CancelledError):
                    message = await poll
                    assert message is not None
                    found.append(message.text)
            return [*found, *await texts(reader)]

    found = asyncio.run(read())
    assert found == [str(number) for number in range(60)]
    assert cluster.cursors == [60]


def test_lists_and_tables(server: ScriptedServer, cluster: MemoryCluster) -> None:
    for number in range(10):
        cluster.put(f"{number}-a", f"{number}-b")

    async def read() -> None:
        async with consumer(server) as reader:
            first = await reader.poll(5)
            assert first is not None
            many = await reader.poll_many(5, 5)
            assert [message.offset for message in many] == list(range(1, 1 + len(many)))
            table = await reader.fetch_arrow(max_messages=3, timeout=5)
            assert table.column("offset").to_pylist()[0] == 1 + len(many)
            await reader.seek(0, to=18)
            assert [message.offset for message in await reader.poll_many(timeout=5)] == [18, 19]
            assert (await reader.poll_many(timeout=0)) == []
            assert reader.position() == {0: 20}
            assert (await reader.lag()).partitions[0].end_offset == 20

    asyncio.run(read())


def test_closing_ends_an_iteration_and_what_is_closed_says_so(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a", "b")

    async def read() -> None:
        reader = await consumer(server).open()
        found: list[Message] = []

        async def iterate() -> None:
            async for message in reader:
                found.append(message)

        task = asyncio.create_task(iterate())
        await until(lambda: len(found) == 2)
        await reader.close()
        await asyncio.wait_for(task, 5)
        for used in (reader.poll(), reader.poll_many(), reader.commit(), reader.seek(to="latest"), reader.lag()):
            with pytest.raises(ConsumerClosed, match="billing"):
                await used
        await reader.close()

    asyncio.run(read())
    assert cluster.cursors == [2]  # it had asked for more


def test_it_says_that_it_is_not_open(server: ScriptedServer, cluster: MemoryCluster) -> None:
    async def read() -> None:
        reader = consumer(server)
        with pytest.raises(ConsumerClosed, match="not open"):
            await reader.poll()
        async with reader:
            with pytest.raises(ConsumerClosed, match="open already"):
                await reader.open()
        with pytest.raises(ConsumerClosed, match="is closed"):
            await reader.open()

    asyncio.run(read())


def test_another_task_that_closes_does_not_commit_the_message_in_hand(
    server: ScriptedServer, cluster: MemoryCluster
) -> None:
    cluster.put("a", "b")

    async def read() -> None:
        reader = await consumer(server).open()
        await asyncio.create_task(reader.poll(5))
        await reader.close()

    asyncio.run(read())
    assert cluster.cursors == [0]


def test_errors_reach_the_reader(server: ScriptedServer, cluster: MemoryCluster) -> None:
    async def read() -> None:
        async with consumer(server, retry=RetryPolicy(deadline_s=0.5, longest_pause_s=0.05)) as reader:
            assert await reader.poll(0) is None
            server.answer = lambda _: Reply(503, failure(503, 50304))
            with pytest.raises(Unavailable):
                await reader.poll(10)
            server.answer = cluster
        cluster.logs[0].beginning = 7
        cluster.put("h")
        async with consumer(server, on_gap="error") as reader:
            with pytest.raises(OffsetOutOfRange):
                await reader.poll(5)
            assert await texts(reader) == ["h"]

    asyncio.run(read())


@pytest.mark.parametrize("commit", ["auto", "manual"])
def test_a_revoked_partition_is_given_back(server: ScriptedServer, commit: Any) -> None:
    server.answer = cluster = MemoryCluster(partitions=2)
    cluster.can_wait = True
    cluster.lease_ms = 60_000
    for partition in range(2):
        cluster.put(*(f"{partition}/{number}" for number in range(100)), partition=partition)

    async def read() -> None:
        async with consumer(server, commit=commit) as reader:
            first = await reader.poll(5)
            assert first is not None
            await until(lambda: any("wait_ms" in seen.body for seen in server.calls(POLL)))
            with cluster.lock:
                cluster.leases[first.partition].revoking = True
            while (message := await reader.poll(5)) is not None and message.partition == first.partition:
                await asyncio.sleep(0.01)
            await until(lambda: any(seen.body.get("released") for seen in server.calls(POLL)))

    asyncio.run(read())


def test_many_consumers_share_one_thread_and_the_loop_is_not_blocked(
    server: ScriptedServer, cluster: MemoryCluster
) -> None:
    cluster.can_wait = True
    before = {thread.ident for thread in threading.enumerate()}

    async def read() -> None:
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                started = time.monotonic()
                await asyncio.sleep(0.01)
                longest = max(longest, time.monotonic() - started)

        watching = asyncio.create_task(watch())
        readers = [await consumer(server).open() for _ in range(20)]
        cluster.put("a")
        polls = [asyncio.create_task(reader.poll()) for reader in readers]
        done, waiting = await asyncio.wait(polls, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1, "the partition belongs to one of them"
        for poll in waiting:
            poll.cancel()
        new = [t.name for t in threading.enumerate() if t.ident not in before and t.name.startswith("myqueue")]
        assert new == ["myqueue-io"]
        for reader in readers:
            await reader.close()
        watching.cancel()
        assert longest < 1.0

    asyncio.run(read())


def test_a_second_iteration_goes_on_where_the_first_was_left(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("a", "b", "c", "d")

    async def read() -> list[str]:
        found: list[str] = []
        async with consumer(server) as reader:
            first = await reader.poll(5)
            assert first is not None
            found.append(first.text)
            for _ in range(3):
                async for message in reader:
                    found.append(message.text)
                    break
        return found

    assert asyncio.run(asyncio.wait_for(read(), 20)) == ["a", "b", "c", "d"]


def test_other_tasks_get_their_turn_while_there_is_a_backlog(server: ScriptedServer, cluster: MemoryCluster) -> None:
    for number in range(200):
        cluster.put(str(number))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def read() -> int:
        async with consumer(server) as reader:
            assert await reader.poll(5) is not None
            await until(lambda: any(seen.query.get("offset") == "200" for seen in server.seen))
            beside = asyncio.ensure_future(other())
            await asyncio.sleep(0)
            before = turns
            for _ in range(199):
                assert await reader.poll(5) is not None
            beside.cancel()
            return turns - before

    assert asyncio.run(read()) >= 100
