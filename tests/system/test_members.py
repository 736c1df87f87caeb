"""Members of a consumer as applications see them: what is revoked can be committed first, and who hangs is replaced."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from myqueue import Admin, Consumer, MaxPollIntervalExceeded, Message, Producer, StaleLease, TopicPartition
from myqueue.aio import AsyncConsumer
from tests.waiting import let_pass, until

EACH = 50


@pytest.fixture
def orders(url: str, topic_name: str) -> str:
    """A topic of two partitions with messages in both."""
    with Admin(url) as admin:
        admin.create_topic(topic_name, partitions=2)
    with Producer(url, topic=topic_name) as producer:
        for partition in range(2):
            producer.send_many([f"{partition}/{number}" for number in range(EACH)], partition=partition).result()
    return topic_name


class Worker:
    """A consumer that reads in a thread of its own."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.read: list[Message] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for message in self.consumer:
            self.read.append(message)

    def close(self) -> None:
        self.consumer.close()
        self._thread.join(10)
        assert not self._thread.is_alive()


def read_all(url: str, consumer: Consumer) -> list[Message]:
    """All messages, and one more of partition 0: a second member gets partition 1, of which nothing is in hand then."""
    read = [consumer.poll(20) for _ in range(2 * EACH)]
    send(url, consumer.topic, partition=0)
    read.append(consumer.poll(20))
    assert read[-1] is not None
    assert read[-1].partition == 0
    return [message for message in read if message is not None]


def send(url: str, topic: str, *, partition: int) -> None:
    with Producer(url, topic=topic) as producer:
        producer.send("more", partition=partition).result()


def cursors(url: str, consumer: Consumer) -> dict[int, int]:
    with Admin(url) as admin:
        return {number: p.cursor for number, p in admin.lag(consumer.consumer_id).partitions.items()}


def poll_until(consumer: Consumer, is_over: Callable[[], object], read: list[Message]) -> None:
    def poll() -> object:
        message = consumer.poll(0.05)
        if message is not None:
            read.append(message)
        return is_over()

    until(poll, within_s=20, what="enough polls", pause_s=0.001)


def test_a_commit_in_on_revoke_counts(url: str, orders: str) -> None:
    """A member that commits in batches, while another one joins: nothing is refused, nothing is read twice."""
    batch: list[Message] = []
    revoked: list[TopicPartition] = []
    assigned: list[TopicPartition] = []

    def on_revoke(partitions: list[TopicPartition]) -> None:
        revoked.extend(partitions)
        if batch:
            first.commit(batch)
            batch.clear()

    first = Consumer(
        url, orders, "g", start="earliest", commit="manual", on_assign=assigned.extend, on_revoke=on_revoke
    )
    with first:
        batch += read_all(url, first)
        assert sorted(assigned) == [TopicPartition(orders, 0), TopicPartition(orders, 1)]
        second = Worker(Consumer(url, orders, "g"))
        poll_until(first, lambda: revoked, batch)
        assert revoked == [TopicPartition(orders, 1)]
        assert cursors(url, first)[1] == EACH
        send(url, orders, partition=1)
        until(lambda: second.read, what="the second reads what comes then")
        second.close()
        assert [(message.partition, message.offset) for message in second.read] == [(1, EACH)]


def test_uncommitted_messages_may_be_committed_until_the_next_poll(url: str, orders: str) -> None:
    """Without callbacks too: a partition goes inside a poll, never between two of them."""
    with Consumer(url, orders, "g", start="earliest", commit="manual") as first:
        batch = read_all(url, first)
        second = Worker(Consumer(url, orders, "g"))
        (topic,) = first._core._topics
        until(lambda: any(state.revoking for state in topic.subscription), what="a partition is revoked")
        let_pass(0.5)
        assert first.commit(batch) == first.position()
        poll_until(first, lambda: len(first.position()) == 1, [])
        until(lambda: len(second.consumer.position()) == 1, what="it has moved")
        second.close()


def test_without_callbacks_the_next_poll_gives_uncommitted_messages_away(url: str, orders: str) -> None:
    with Consumer(url, orders, "g", start="earliest", commit="manual") as first:
        batch = read_all(url, first)
        second = Worker(Consumer(url, orders, "g"))
        poll_until(first, lambda: len(first.position()) == 1, [])
        until(lambda: len(second.read) == EACH, what="the second reads all of it again")
        (moved,) = second.consumer.position()
        lost = [message for message in batch if message.partition == moved]
        with pytest.raises(StaleLease):
            first.commit(lost)
        second.close()


def test_a_worker_that_hangs_is_replaced_and_told(url: str, orders: str) -> None:
    lost: list[TopicPartition] = []
    settings = {"start": "earliest", "commit": "manual", "max_poll_interval_s": 2.0, "on_lost": lost.extend}
    with Consumer(url, orders, "g", **settings) as first:  # type: ignore[arg-type]
        message = first.poll(20)
        assert message is not None
        second = Worker(Consumer(url, orders, "g"))
        until(lambda: len(second.read) == 2 * EACH, within_s=20, what="the other one reads all of it")
        with pytest.raises(StaleLease, match="max_poll_interval_s is 2"):
            first.commit(message)
        with pytest.raises(StaleLease, match="max_poll_interval_s is 2"):
            first.commit()
        second.close()
        send(url, orders, partition=0)  # before the next poll, with which the interval begins again
        with pytest.raises(MaxPollIntervalExceeded, match=r"no poll for \d+ seconds.*larger max_poll_interval_s"):
            first.poll(5)
        assert sorted(lost) == [TopicPartition(orders, 0), TopicPartition(orders, 1)]
        again = first.poll(10)
        assert again is not None
        assert again.value == b"more"
        first.commit(again)


def test_waiting_and_iterating_count_as_polling(url: str, orders: str) -> None:
    with Consumer(url, orders, "g", start="earliest", commit="manual", max_poll_interval_s=2.0) as consumer:
        for count, _ in enumerate(consumer, 1):
            if count <= 10:
                let_pass(0.4)  # together longer than the interval, in one batch that was fetched at once
            if count == 2 * EACH:
                break
        assert consumer.poll(3.0) is None
        assert consumer.commit() == {0: EACH, 1: EACH}


def test_coroutines_as_callbacks_are_awaited(url: str, orders: str) -> None:
    """A commit that is awaited in on_revoke counts, in a rebalance and when the consumer is closed."""
    called: list[tuple[str, list[int]]] = []

    async def on_assign(partitions: list[TopicPartition]) -> None:
        await asyncio.sleep(0)
        called.append(("assign", [place.partition for place in partitions]))

    async def on_revoke(partitions: list[TopicPartition]) -> None:
        await first.commit()
        called.append(("revoke", [place.partition for place in partitions]))

    async def read(count: int) -> list[Message | None]:
        return [await first.poll(20) for _ in range(count)]

    async def rebalance() -> None:
        async with asyncio.timeout(20):
            while len(called) < 2:
                await first.poll(0.05)

    async def main() -> None:
        async with first:
            assert None not in await read(2 * EACH)
            assert called == [("assign", [0, 1])]
            second = Worker(await asyncio.to_thread(Consumer, url, orders, "g"))
            await rebalance()
            await asyncio.to_thread(until, lambda: len(second.consumer.position()) == 1, what="it has moved")
            (moved,) = second.consumer.position()
            assert called[1:] == [("revoke", [moved])]
            await asyncio.to_thread(second.close)
            assert second.read == []
            called.clear()
            await asyncio.to_thread(send, url, orders, partition=1 - moved)
            assert await first.poll(20) is not None
        assert called[-1][0] == "revoke"

    first = AsyncConsumer(url, orders, "g", start="earliest", commit="manual", on_assign=on_assign, on_revoke=on_revoke)
    asyncio.run(main())
    with Admin(url) as admin:
        assert admin.lag(first.consumer_id).messages == 0


def test_a_blocking_consumer_refuses_coroutines(url: str, orders: str) -> None:
    async def on_revoke(_: list[TopicPartition]) -> None: ...

    with pytest.raises(TypeError, match=r"on_revoke is a coroutine function.*AsyncConsumer"):
        Consumer(url, orders, on_revoke=on_revoke)
