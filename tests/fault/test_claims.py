"""Messages consumed one by one while PostgreSQL hangs and managers die: none is skipped."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil
import pytest
import requests

from myqueue import Producer
from myqueue.protocol import internal
from tests.calls import Calls
from tests.cluster import Cluster
from tests.waiting import until

STOP_S = 3.5
QUIET_S = 25.0  # more than twice the lifetime of a claim: every claim that was not delivered has expired by then


@contextmanager
def stopped(cluster: Cluster, name: str) -> Iterator[None]:
    """Every process of a PostgreSQL server: its backends accept bytes and never answer."""
    postmaster = psutil.Process(cluster.local.pid(name))
    processes = [postmaster, *postmaster.children(recursive=True)]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


@dataclass
class Consumption:
    """Requests that consume one consumer until `stop` is set; each failed answer is kept."""

    url: str
    topic: str
    consumer_id: int
    received: Counter[str] = field(default_factory=Counter)
    failed: list[dict[str, object]] = field(default_factory=list)
    received_s: float = 0.0  # when the last message came
    stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def by(self, workers: int) -> Iterator[None]:
        threads = [threading.Thread(target=self._consume, daemon=True) for _ in range(workers)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in threads:
                thread.join(60)
            assert not any(thread.is_alive() for thread in threads), "a request did not end"

    def until_all_came(self, messages: int) -> None:
        until(
            lambda: len(self.received) == messages or time.monotonic() - self.received_s > QUIET_S,
            within_s=180,
            what="all messages are delivered, or no more come",
        )

    def _consume(self) -> None:
        query = {"topic": self.topic, "consumer_id": str(self.consumer_id)}
        with requests.Session() as session:
            while not self.stop.is_set():
                answer = session.get(self.url + "/consumer/consume", params=query, timeout=60)
                if answer.status_code == 200:
                    self.received_s = time.monotonic()
                    self.received[answer.json()["message"]] += 1
                elif answer.status_code == 204:
                    self.stop.wait(0.1)
                else:
                    self.failed.append(answer.json())
                    self.stop.wait(0.05)


def produced(cluster: Cluster, topic: str, count: int) -> set[str]:
    values = [f"m{number}" for number in range(count)]
    with Producer(cluster.url, topic=topic) as producer:
        producer.send_many(values)
        producer.flush()
    return set(values)


def consume_while_the_primary_hangs(
    cluster: Cluster, calls: Calls, topic: str, *, messages: int, workers: int, stops: int
) -> tuple[set[str], Consumption]:
    """The messages that were produced, and what came of consuming them."""
    calls.topic(topic, partitions=4)
    consumer_id = calls.consumer(topic, **{"from": "earliest"})
    sent = produced(cluster, topic, messages)
    consumption = Consumption(cluster.url, topic, consumer_id)
    pause = threading.Event()
    with consumption.by(workers):
        for stop in range(stops):
            some = messages * (stop + 1) // (stops + 2)
            until(lambda some=some: len(consumption.received) >= some, within_s=60, what=f"{some} consumed")  # type: ignore[misc]
            with stopped(cluster, "postgres-1"):
                pause.wait(STOP_S)
        consumption.until_all_came(messages)
    return sent, consumption


@pytest.mark.slow
def test_a_hung_primary_makes_no_consumer_skip(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    sent, consumption = consume_while_the_primary_hangs(cluster, calls, topic_name, messages=6000, workers=160, stops=2)
    assert set(consumption.received) == sent
    assert consumption.failed, "nothing failed: PostgreSQL was not missed"
    assert all(body["retriable"] for body in consumption.failed)


def expired(cluster: Cluster) -> float:
    """Claims whose messages were read again, as the write manager counts them since it started."""
    text = requests.get(cluster.address_of(cluster.active_write_manager()) + "/metrics", timeout=5).text
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith("myqueue_claims_expired_total")))


@pytest.mark.slow
def test_killed_managers_make_no_consumer_skip(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    """What was in flight may come again; it is counted."""
    messages = 4000
    calls.topic(topic_name, partitions=4)
    consumer_id = calls.consumer(topic_name, **{"from": "earliest"})
    sent = produced(cluster, topic_name, messages)
    consumption = Consumption(cluster.url, topic_name, consumer_id)
    with consumption.by(64):
        for number, chosen in enumerate(("read-manager-1", None, "read-manager-2"), 1):
            some = messages * number // 5
            until(lambda some=some: len(consumption.received) >= some, within_s=60, what=f"{some} consumed")  # type: ignore[misc]
            name = chosen or cluster.active_write_manager()
            cluster.await_restart(name, cluster.kill(name), within_s=30)
        consumption.until_all_came(messages)
    assert set(consumption.received) == sent
    twice = sum(count - 1 for count in consumption.received.values())
    assert twice <= 200, "a report is at most a quarter of a second late"
    # A claim expires unless it is reported: what is left in flight now has no owner.
    until(lambda: calls.size(topic_name, consumer_id).json()["size"] == 0, within_s=30, what="nothing is left to read")


def test_a_claim_whose_read_manager_died_is_counted_and_comes_again(
    cluster: Cluster, calls: Calls, topic_name: str
) -> None:
    calls.topic(topic_name)
    calls.sent(topic_name, calls.producer(topic_name), "once more")
    consumer_id = calls.consumer(topic_name, **{"from": "earliest"})
    before = expired(cluster)
    request = {"topic": topic_name, "consumer_id": consumer_id, "partition_id": None, "identity": "request nobody"}
    claim = cluster.ask(cluster.internal_url + internal.CLAIM.path, request).json()["claim"]
    assert claim["offset"] == 0
    assert calls.consume(topic_name, consumer_id).status_code == 204, "it is in flight"
    received = calls.consume(topic_name, consumer_id, wait_ms=30_000)
    assert received.json()["message"] == "once more"
    assert expired(cluster) > before


@pytest.mark.slow
def test_a_primary_that_hangs_four_times_makes_no_consumer_skip(
    cluster: Cluster, calls: Calls, topic_name: str
) -> None:
    sent, consumption = consume_while_the_primary_hangs(
        cluster, calls, topic_name, messages=12_000, workers=160, stops=4
    )
    twice = sum(count - 1 for count in consumption.received.values())
    print(
        f"never delivered {len(sent - set(consumption.received))}, came again {twice}, failed {len(consumption.failed)}"
    )
    assert set(consumption.received) == sent
