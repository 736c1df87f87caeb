"""Many at once: nothing lost, nothing twice, every consumer sees everything, also while a read manager dies."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import requests

from tests.calls import Calls
from tests.cluster import READ_MANAGERS, Cluster
from tests.history import UNREPORTED_S
from tests.waiting import until

PRODUCERS, CONSUMERS, EACH = 4, 3, 75
SHARERS, SHARED = 16, 300
ROUNDS, WORKERS = 300, 3


def test_producers_and_consumers_at_once(stack: Cluster, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=4)
    consumers = [calls.consumer(topic_name, name=f"consumer {number}") for number in range(CONSUMERS)]
    expected = {f"{producer}-{number}" for producer in range(PRODUCERS) for number in range(EACH)}
    sent = threading.Event()

    def produce(number: int) -> dict[str, tuple[int, int]]:
        with requests.Session() as session:
            mine = Calls(stack.url, session)
            producer = mine.producer(topic_name, name=f"producer {number}")
            return {f"{number}-{i}": mine.sent(topic_name, producer, f"{number}-{i}") for i in range(EACH)}

    def consume(consumer: int) -> list[dict[str, Any]]:
        read: list[dict[str, Any]] = []
        with requests.Session() as session:
            mine = Calls(stack.url, session)
            while True:
                everything_was_sent = sent.is_set()
                answer = mine.consume(topic_name, consumer, None, wait_ms=200)
                assert answer.status_code in (200, 204), answer.text
                if answer.status_code == 200:
                    read.append(answer.json())
                elif everything_was_sent:
                    return read

    with ThreadPoolExecutor(PRODUCERS + CONSUMERS) as pool:
        reading = [pool.submit(consume, consumer) for consumer in consumers]
        writing = [pool.submit(produce, number) for number in range(PRODUCERS)]
        try:
            places = {message: place for future in writing for message, place in future.result().items()}
        finally:
            sent.set()
        seen = [future.result() for future in reading]

    assert set(places) == expected
    assert len(set(places.values())) == len(expected), "no two messages at one place"
    for read in seen:
        assert Counter(m["message"] for m in read) == Counter(expected), "each exactly once"
        assert all((m["partition_id"], m["offset"]) == places[m["message"]] for m in read)
        by_partition: dict[int, list[int]] = {}
        for message in read:
            by_partition.setdefault(message["partition_id"], []).append(message["offset"])
        assert all(offsets == list(range(len(offsets))) for offsets in by_partition.values()), "in order, no gaps"


def test_one_consumer_shared_by_many_while_a_read_manager_dies(stack: Cluster, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=4)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name, name="shared")
    sent = {str(number): calls.sent(topic_name, producer, str(number)) for number in range(SHARED)}
    read: list[dict[str, Any]] = []
    first_s: dict[str, float] = {}
    repeated_s: list[float] = []  # when messages that came twice came first
    failures: list[str] = []

    def share() -> None:
        with requests.Session() as session:
            mine = Calls(stack.url, session)
            while len(first_s) < SHARED:
                try:
                    answer = mine.consume(topic_name, consumer)
                except requests.RequestException as error:
                    failures.append(repr(error))
                    return
                if answer.status_code == 200:
                    read.append(answer.json())
                    message = answer.json()["message"]
                    if message in first_s:
                        repeated_s.append(first_s[message])
                    else:
                        first_s[message] = time.monotonic()
                elif answer.status_code == 204:
                    return
                else:
                    failures.append(f"{answer.status_code} {answer.text}")

    with ThreadPoolExecutor(SHARERS) as pool:
        sharing = [pool.submit(share) for _ in range(SHARERS)]
        until(lambda: len(read) > SHARED // 8, within_s=30, what="reading is under way")
        died = stack.kill("read-manager-1")
        killed_s, at_kill = time.monotonic(), len(read)
        for future in sharing:
            future.result()
    assert failures == []
    assert at_kill < SHARED, "it died while there was something to read"
    assert first_s.keys() == sent.keys()
    # A delivery that was not reported yet when its manager died comes again.
    assert all(abs(killed_s - came_s) < UNREPORTED_S for came_s in repeated_s)
    assert all((m["partition_id"], m["offset"]) == sent[m["message"]] for m in read)
    stack.await_restart("read-manager-1", died, within_s=20)


@pytest.mark.slow
def test_what_was_registered_can_be_read_at_once_everywhere(stack: Cluster, topic_name: str) -> None:
    """Without a session token: a standby that does not have it yet must not answer."""

    def look(direct: Calls, topic: str, consumer: int) -> tuple[int, int, int]:
        return (
            direct.partitions(topic).status_code,
            direct.size(topic, consumer).status_code,
            direct.consume(topic, consumer).status_code,
        )

    def rounds(worker: int) -> list[str]:
        misses = []
        topic = ""
        with ExitStack() as opened:
            front, *direct = (
                Calls(url, opened.enter_context(requests.Session()))
                for url in (stack.url, *map(stack.address_of, READ_MANAGERS))
            )
            pool = opened.enter_context(ThreadPoolExecutor(len(direct)))
            for number in range(ROUNDS // WORKERS):
                if number % 3 == 0:  # a cluster has room for a thousand partitions
                    topic = front.topic(f"{topic_name}-{worker}-{number}")
                producer, consumer = front.producer(topic), front.consumer(topic)
                front.sent(topic, producer, str(number))
                looks = [pool.submit(look, calls, topic, consumer) for calls in direct]
                seen = sorted(future.result() for future in looks)
                if seen != [(200, 200, 200), (200, 200, 204)]:  # the one message goes to one of them
                    misses.append(f"round {number} of {worker}: {seen}")
        return misses

    with ThreadPoolExecutor(WORKERS) as pool:
        assert [miss for misses in pool.map(rounds, range(WORKERS)) for miss in misses] == []
