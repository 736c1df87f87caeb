"""A consumer's deserializer: each message once, errors that name theirs, and no commit past one that nobody saw."""

import asyncio
import pickle
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myqueue import Consumer, DeserializationError, SerializationError, json_deserializer
from myqueue.aio import AsyncConsumer
from myqueue.deserializing import DeserializedValues
from myqueue.subscription_state import InFlight, PartitionLease, SubscriptionState
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import ScriptedServer
from tests.unit.client.test_subscription_state import chunk


def consumer(server: ScriptedServer, **more: Any) -> Consumer:
    chosen: dict[str, Any] = {"value_deserializer": json_deserializer, "commit": "manual"} | more
    return Consumer(server.url, topic="orders", name="billing", start="earliest", **chosen)


def test_values_are_what_the_deserializer_returns(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put('{"n": 1}', "2", "[3]", "null")
    cluster.put("5", "6")
    with consumer(server) as reader:
        first = reader.poll(5)
        assert first is not None
        assert (first.topic, first.value, first.partition, first.offset) == ("orders", {"n": 1}, 0, 0)
        assert [message.value for message in reader.poll_many(2, timeout=5)] == [2, [3]]
        found = []
        for message in reader:
            found.append(message.value)
            if len(found) == 3:
                break
        assert found == [None, 5, 6]
        reader.seek(to="earliest")
        assert reader.fetch_arrow(timeout=5)["value"].to_pylist()[0] == b'{"n": 1}'


def test_a_poll_goes_on_behind_a_message_that_cannot_be_read(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("1", "{broken", "3")
    with consumer(server) as reader:
        first = reader.poll(5)
        assert first is not None
        with pytest.raises(DeserializationError, match=r"1 of partition 0 of topic 'orders'.*\{broken") as caught:
            reader.poll(5)
        assert (caught.value.raw.value, caught.value.raw.offset) == (b"{broken", 1)
        assert caught.value.details == {"topic": "orders", "partition_id": 0, "offset": 1}
        assert isinstance(caught.value.__cause__, SerializationError)
        copy = pickle.loads(pickle.dumps(caught.value))  # as a pool of processes does
        assert (copy.raw, copy.message) == (caught.value.raw, caught.value.message)
        reader.commit(first)
        assert cluster.cursors == [1]
        reader.commit()
        assert cluster.cursors == [2]
        following = reader.poll(5)
        assert following is not None
        assert following.value == 3


def test_poll_many_returns_what_comes_before_the_bad_one(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("1", "2")
    cluster.put("3", "{broken", "5")
    cluster.put("6")
    cluster.put("{bad")
    with consumer(server) as reader:
        assert [message.value for message in reader.poll_many(timeout=5)] == [1, 2, 3]
        reader.commit()
        assert cluster.cursors == [3]
        assert reader.position() == {0: 3}
        with pytest.raises(DeserializationError) as caught:
            reader.poll_many(timeout=5)
        assert caught.value.raw.offset == 3
        assert reader.position() == {0: 4}
        reader.commit(caught.value.raw)
        assert cluster.cursors == [4]
        assert [message.value for message in reader.poll_many(timeout=5)] == [5, 6]
        with pytest.raises(DeserializationError) as caught:
            reader.poll(5)
        assert caught.value.raw.offset == 6
        assert reader.get_message() is None


def test_an_interrupt_takes_no_messages(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("1", "2")
    cluster.put("3")
    interrupts = [KeyboardInterrupt()]

    def interrupted(value: bytes) -> bytes:
        if value == b"2" and interrupts:
            raise interrupts.pop()
        return value

    with consumer(server, value_deserializer=interrupted) as reader:
        with pytest.raises(KeyboardInterrupt):
            reader.poll_many(timeout=5)
        assert reader.position() == {0: 0}
        assert [message.text for message in reader.poll_many(timeout=5)] == ["1", "2", "3"]


def test_a_seek_by_the_deserializer_counts(server: ScriptedServer, cluster: MemoryCluster) -> None:
    """What was in hand is not put back into a partition that has moved."""
    cluster.put("1", "2", "3")
    readers: list[Consumer] = []
    seen: list[bytes] = []

    def seeking(value: bytes) -> bytes:
        seen.append(value)
        if len(seen) == 2:
            readers[0].seek(0, to=0)
            raise ValueError
        return value

    with consumer(server, value_deserializer=seeking) as reader:
        readers.append(reader)
        assert [message.text for message in reader.poll_many(timeout=5)] == ["1"]
        assert reader.position() == {0: 0}
        assert [message.text for message in reader.poll_many(timeout=5)] == ["1", "2", "3"]


def test_an_iteration_is_gone_on_with_after_an_error(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("1", "{broken", "3", "4")
    with consumer(server) as reader:
        found: list[int] = []
        with pytest.raises(DeserializationError):
            found.extend(message.value for message in reader)
        for message in reader:
            found.append(message.value)
            if len(found) == 3:
                break
    assert found == [1, 3, 4]


def test_an_event_loop_reads_the_same(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.put("1", "{broken", "3", "4", "{bad", "6")

    async def read() -> None:
        async with AsyncConsumer(
            server.url, "orders", "billing", start="earliest", value_deserializer=json_deserializer
        ) as reader:
            found: list[int] = []

            async def read_all() -> None:
                async for message in reader:
                    found.append(message.value)

            with pytest.raises(DeserializationError):
                await read_all()
            async for message in reader:
                found.append(message.value)
                break
            found += [message.value for message in await reader.poll_many(timeout=5)]
            with pytest.raises(DeserializationError):
                await reader.poll_many(timeout=5)
            last = await reader.poll(5)
            assert last is not None
            assert [*found, last.value] == [1, 3, 4, 6]

    asyncio.run(read())
    assert cluster.cursors == [6]


def test_a_deserializer_is_a_function(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with pytest.raises(TypeError, match="value_deserializer must be a function"):
        consumer(server, value_deserializer="json")


@given(
    sizes=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), min_size=1, max_size=5),
    bad=st.integers(0, 9),
    event=st.sampled_from(["nothing", "wanted", "lost", "sought"]),
)
@settings(max_examples=300)
def test_what_comes_after_a_bad_value_goes_back(sizes: list[tuple[int, int]], bad: int, event: str) -> None:
    """Chunks of two partitions; something happens to the lease of the first one while their values are converted."""
    subscription = SubscriptionState()
    leases = [PartitionLease(partition, 1, 0, False) for partition in (0, 1)]
    subscription.renew(leases, 0.0, 1e9)
    handed: list[InFlight] = []
    for partition, size in sizes:
        state = subscription.get(partition)
        assert state is not None
        subscription.put(state, state.fetched, [chunk(partition, state.fetched, size)])
    while (taken := subscription.take(0.0)) is not None:
        handed.append(subscription.hand_out(*taken, None))
    offsets = [(h.chunk.partition, offset) for h in handed for offset in range(h.chunk.first, h.chunk.end)]
    left = iter(range(len(offsets)))

    def deserialize(value: bytes) -> bytes:
        number = next(left)
        if number == 0 and event == "wanted":
            subscription.renew([PartitionLease(0, 1, 0, True), leases[1]], 0.0, 1e9)
        elif number == 0 and event == "lost":
            subscription.renew(leases[1:], 0.0, 1e9)
        elif number == 0 and event == "sought":
            subscription.seek(0, 40, 2)
        if number == bad:
            raise ValueError
        return value

    def read() -> list[tuple[int, int]]:
        messages = DeserializedValues(deserialize).messages(handed, threading.Lock())
        return [(message.partition, message.offset) for message in messages]

    out = offsets[: max(1, bad)]
    if bad == 0:
        with pytest.raises(DeserializationError):
            read()
    else:
        assert read() == out
    expected = {partition: sum(1 for of, _ in out if of == partition) for partition in (0, 1)}
    back = [entry for entry in offsets if entry not in out and (entry[0] == 1 or event == "nothing")]
    if event == "lost":
        del expected[0]
    elif event == "sought":
        expected[0] = 40
    assert subscription.positions() == expected
    again: dict[int, list[int]] = {0: [], 1: []}
    while (taken := subscription.take(0.0)) is not None:
        again[taken[1].partition] += range(taken[1].first, taken[1].end)
    assert again == {partition: [offset for of, offset in back if of == partition] for partition in (0, 1)}
    for state in subscription:
        assert state.position + len(again[state.partition]) == state.fetched
        assert state.buffered == 0
