"""Brokers that do not answer delay only the registrations and topics that need them."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.calls import Calls
from tests.cluster import Cluster
from tests.waiting import until

WAITING = 6


def test_registering_waits_for_no_leader_of_another_topic(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    """A new consumer needs a leader to know where it starts; a known one does not."""
    calls.topic(topic_name)
    known = calls.consumer(topic_name, name="known")
    cluster.await_leader(topic_name, within_s=10)
    cluster.pause("broker-2")
    cluster.pause("broker-3")

    def register(number: int) -> requests.Response:
        with requests.Session() as session:
            return Calls(cluster.url, session).register_consumer(topic_name, name=f"new {number}")

    def refused() -> bool:
        return register(0).status_code == 503

    until(refused, within_s=20, what="the partition has lost its leader")
    with ThreadPoolExecutor(WAITING) as pool:
        waiting = [pool.submit(register, number) for number in range(WAITING)]
        done = []
        while not all(each.done() for each in waiting):
            done.append(calls.register_producer(topic_name))
        answers = [each.result() for each in waiting]
    assert {answer.status_code for answer in done} == {201}, [answer.text for answer in done]
    assert {answer.json()["error_code"] for answer in answers} == {50302}, "no leader, not a catalog that is locked"
    again = calls.register_consumer(topic_name, name="known")
    assert (again.status_code, again.json()["consumer_id"]) == (200, known)


@pytest.mark.slow
def test_a_broker_that_hangs_does_not_hold_up_a_topic_of_many_partitions(
    cluster: Cluster, calls: Calls, topic_name: str
) -> None:
    other = f"{topic_name}-other"
    until(lambda: calls.create_topic(other).status_code == 201, within_s=30, what="all brokers are back")
    cluster.pause("broker-3")

    def create() -> tuple[requests.Response, float]:
        started_s = time.monotonic()
        with requests.Session() as session:
            answer = Calls(cluster.url, session).create_topic(topic_name, partitions=256)
        return answer, time.monotonic() - started_s

    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(create)
        done = []
        while not creating.done():
            done.append(calls.register_producer(other))
        answer, took_s = creating.result()
    assert answer.status_code == 201, answer.text
    assert took_s < 8
    assert {each.status_code for each in done} == {201}, [each.text for each in done]
    asked = cluster.log_of(cluster.active_write_manager()).count('"partition not created yet"')
    assert asked < 20, "it was not asked for each of them"
    cluster.resume("broker-3")

    def all_led() -> bool:
        found = calls.partitions(topic_name).json()["partitions"]
        return all(partition["leader"] is not None for partition in found)

    until(all_led, within_s=90, what="the reconciler has made what was left")
