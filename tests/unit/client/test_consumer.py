"""The consumer: waits for messages, never skips one whose answer was lost, stops when told."""

import threading
import time

import pytest

from myqueue import Consumer, Message, RetryPolicy, Timeouts, TopicNotFound, Unavailable
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reply, Reset, ScriptedServer, Seen, Step, failure

QUICK = RetryPolicy(deadline_s=2.0, first_pause_s=0.001, longest_pause_s=0.01)
CONSUME = "/consumer/consume"


@pytest.fixture
def cluster(server: ScriptedServer) -> MemoryCluster:
    server.answer = cluster = MemoryCluster()
    return cluster


def consumer(server: ScriptedServer, *, wait_s: float = 0.1, retry: RetryPolicy = QUICK) -> Consumer:
    return Consumer(
        server.url,
        topic="orders",
        name="billing",
        start="earliest",
        retry=retry,
        timeouts=Timeouts(read_s=5),
        wait_s=wait_s,
    )


def test_it_registers_itself_and_reads(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.messages += ["a", {"base64": "//4="}]
    with consumer(server) as reader:
        assert reader.size() == 2
        first = reader.poll(1)
        assert first == Message("orders", b"a", None, 0, 0, 1_700_000_000_000, 3)
        assert first.text == "a"
        second = reader.get_message()
        assert second is not None
        assert second.value == b"\xff\xfe"
        assert reader.get_message() is None
    assert server.seen[0].body == {"topic": "orders", "name": "billing", "from": "earliest"}


def test_a_missing_topic_is_told(server: ScriptedServer) -> None:
    server.script(Reply(404, failure(404, 40401, "topic not found")))
    with pytest.raises(TopicNotFound):
        consumer(server)


def test_poll_waits_no_longer_than_asked(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with consumer(server) as reader:
        started = time.monotonic()
        assert reader.poll(0.35) is None
        assert 0.3 < time.monotonic() - started < 3.0


def test_poll_sees_a_message_that_comes_while_it_waits(server: ScriptedServer, cluster: MemoryCluster) -> None:
    with consumer(server, wait_s=2.0) as reader:
        timer = threading.Timer(0.2, lambda: cluster.messages.append("late"))
        timer.start()
        message = reader.poll(5)
        assert message is not None
        assert message.text == "late"
        timer.join()


def test_lost_answers_skip_and_repeat_nothing(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.messages += [f"m{number}" for number in range(60)]
    asked = 0

    def unreliable(seen: Seen) -> Step:
        nonlocal asked
        answer = cluster(seen)
        if seen.path != CONSUME:
            return answer
        asked += 1
        return Reset() if asked % 3 == 0 else Reply(502, None) if asked % 5 == 0 else answer

    server.answer = unreliable
    with consumer(server) as reader:
        read = [message.text for message in iter(reader.get_message, None)]
    assert read == [f"m{number}" for number in range(60)]
    assert asked > 80


def test_after_an_error_the_next_poll_asks_for_the_same_message(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.messages += ["a", "b"]
    with consumer(server) as reader:

        def claims_but_never_answers(seen: Seen) -> Step:
            cluster(seen)
            return Reply(503, failure(503, 50301, retriable=False))

        server.answer = claims_but_never_answers
        with pytest.raises(Unavailable):
            reader.poll(0)
        server.answer = cluster
        assert [message.text for message in iter(reader.get_message, None)] == ["a", "b"]


def test_the_key_changes_only_when_a_message_has_arrived(server: ScriptedServer, cluster: MemoryCluster) -> None:
    """An earlier request that is still waiting somewhere may yet claim under the old key."""
    with consumer(server) as reader:
        assert reader.get_message() is None
        assert reader.get_message() is None
        cluster.messages += ["a", "b"]
        assert reader.get_message() is not None
        assert reader.get_message() is not None
    keys = [seen.key for seen in server.calls(CONSUME)]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_closing_from_another_thread_ends_an_iteration(server: ScriptedServer, cluster: MemoryCluster) -> None:
    cluster.messages += ["a", "b"]
    reader = consumer(server, wait_s=0.2)
    read: list[str] = []
    thread = threading.Thread(target=lambda: read.extend(message.text for message in reader))
    thread.start()
    time.sleep(0.3)
    reader.close()
    thread.join(10)
    assert not thread.is_alive()
    assert read == ["a", "b"]
    assert reader.poll(0) is None


def test_a_message_on_its_way_when_the_consumer_closes_is_handed_out(
    server: ScriptedServer, cluster: MemoryCluster
) -> None:
    reader = consumer(server, wait_s=2.0)
    read: list[str] = []
    thread = threading.Thread(target=lambda: read.extend(message.text for message in reader))
    thread.start()
    time.sleep(0.2)  # it is waiting at the server now
    reader.close()
    cluster.messages.append("claimed after close")
    thread.join(10)
    assert read == ["claimed after close"]


def test_closing_ends_a_consumer_that_cannot_reach_the_cluster(server: ScriptedServer, cluster: MemoryCluster) -> None:
    reader = consumer(server, retry=RetryPolicy(deadline_s=120))
    server.answer = lambda _: Reply(503, failure(503, 50304), {"Retry-After": "60"})
    thread = threading.Thread(target=lambda: list(reader))
    thread.start()
    time.sleep(0.2)
    reader.close()
    thread.join(5)
    assert not thread.is_alive()
