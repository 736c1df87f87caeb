"""A broker without heartbeats is dead; one whose heartbeats a paused or busy write manager cannot take is not."""

import threading
import time
from contextlib import suppress

import pytest
import requests

from tests.calls import Calls
from tests.cluster import STANDBYS, WRITE_MANAGERS, Cluster
from tests.waiting import until

pytestmark = pytest.mark.timeout(90)

PAUSE_S = 7.0  # longer than a broker may be silent


def test_a_pause_of_the_write_manager_kills_nobody(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    topic, producer = calls.topic(topic_name, partitions=3), calls.producer(topic_name)
    before = {name: len(cluster.log_of(name)) for name in WRITE_MANAGERS}
    paused = cluster.active_write_manager()
    cluster.pause(paused)
    paused_s = time.monotonic()
    until(lambda: time.monotonic() - paused_s > PAUSE_S, within_s=2 * PAUSE_S, what="the pause is long enough")
    cluster.resume(paused)
    until(lambda: calls.produce(topic, producer, "x").status_code == 200, within_s=10, what="a message is taken")
    resumed_s = time.monotonic()
    while time.monotonic() - resumed_s < 2:
        calls.sent(topic, producer, "x")
    for name, length in before.items():
        news = cluster.log_of(name)[length:]
        assert "broker changed" not in news, news
        assert "read manager is silent" not in news, news


@pytest.mark.slow
def test_requests_that_wait_for_postgresql_do_not_hold_up_heartbeats(
    cluster: Cluster, calls: Calls, topic_name: str
) -> None:
    """No standby confirms anything, and more registrations wait for that than there are threads."""
    calls.topic(topic_name)
    for name in STANDBYS:
        cluster.stop(name)
    enough = threading.Event()

    def register() -> None:
        while not enough.is_set():
            with suppress(requests.RequestException):
                cluster.ask(cluster.internal_url + "/internal/consumer/register", {"topic": topic_name}, timeout_s=10)

    threads = [threading.Thread(target=register) for _ in range(160)]
    for thread in threads:
        thread.start()
    started_s = time.monotonic()
    said = set()
    try:
        while time.monotonic() - started_s < 2 * PAUSE_S:
            answer = requests.get(cluster.address_of("broker-1") + "/readyz", timeout=5)
            said.add(answer.json()["checks"]["registration"])
    finally:
        enough.set()
        for thread in threads:
            thread.join(20)
    assert said == {"ok"}
