"""Who is silent is dead. Who cannot be heard, because the write manager was paused or has its hands full, is not."""

import time

import pytest

from tests.calls import Calls
from tests.cluster import Cluster, until

pytestmark = pytest.mark.timeout(90)

PAUSE_S = 7.0  # longer than a broker may be silent


def test_a_pause_of_the_write_manager_kills_nobody(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    topic, producer = calls.topic(topic_name, partitions=3), calls.producer(topic_name)
    before = len(cluster.log_of("write-manager-1"))
    cluster.pause("write-manager-1")
    paused_s = time.monotonic()
    until(lambda: time.monotonic() - paused_s > PAUSE_S, within_s=2 * PAUSE_S, what="the pause is long enough")
    cluster.resume("write-manager-1")
    until(lambda: calls.produce(topic, producer, "x").status_code == 200, within_s=10, what="a message is taken")
    resumed_s = time.monotonic()
    while time.monotonic() - resumed_s < 2:
        calls.sent(topic, producer, "x")
    news = cluster.log_of("write-manager-1")[before:]
    assert "broker changed" not in news, news
    assert "read manager is silent" not in news, news
