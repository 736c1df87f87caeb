"""The overview of the cluster: once, and as a stream of events."""

import time
from concurrent.futures import ThreadPoolExecutor

import requests

from myqueue.protocol.overview import Overview
from tests.calls import Calls, assert_failure
from tests.event_client import EventClient
from tests.waiting import until

WITHIN_S = 30.0


def overview(calls: Calls) -> Overview:
    answer = calls.get("/v1/cluster/overview")
    assert answer.status_code == 200, answer.text
    return Overview.model_validate_json(answer.content)


def events(url: str) -> EventClient:
    client = EventClient(url, "/v1/cluster/events")
    assert (client.status, client.headers["content-type"]) == (200, "text/event-stream")
    return client


def test_a_whole_cluster_is_well(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, 2)
    calls.sent(topic_name, calls.producer(topic_name), "hello")

    def has_counted() -> bool:
        return any(each.topic == topic_name and each.messages == 1 for each in overview(calls).topics)

    until(has_counted, within_s=WITHIN_S, what="the message in the overview")
    wrong: list[str] = []

    def is_well() -> bool:
        wrong[:] = wrong_in(overview(calls))
        return not wrong

    # A look waits less than a second for each process: a busy one may miss it.
    try:
        until(is_well, within_s=WITHIN_S, what="nothing is wrong")
    except AssertionError as error:
        error.add_note(f"last seen: {wrong}")
        raise


def wrong_in(seen: Overview) -> list[str]:
    """What is not as in a cluster that is whole."""
    wrong = [f"{process.name}: {process.detail}" for process in seen.processes if not process.healthy]
    roles = {process.role for process in seen.processes}
    if roles != {"load_balancer", "read_manager", "write_manager", "broker", "postgres"}:
        wrong.append(f"roles: {roles}")
    if [server.role for server in seen.postgres].count("primary") != 1:
        wrong.append(f"not one primary: {seen.postgres}")
    if any(server.replay_lag_bytes is None for server in seen.postgres if server.role == "standby"):
        wrong.append(f"a standby without a lag: {seen.postgres}")
    wrong += [f"no figures: {broker}" for broker in seen.brokers if not (broker.disk_free_bytes and broker.replicas)]
    if (seen.leaderless_count, seen.under_replicated_count) != (0, 0):
        wrong.append(f"partitions: {seen.leaderless}, {seen.under_replicated}")
    alerts = {alert.code for alert in seen.alerts} & {"broker_down", "process_down", "no_write_manager"}
    return wrong + [f"alert: {alert}" for alert in alerts]


def test_rates_follow_what_is_produced_and_read(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    with events(calls.url) as stream, ThreadPoolExecutor(1) as pool:
        deadline_s = time.monotonic() + WITHIN_S

        def produce() -> None:
            while time.monotonic() < deadline_s:
                calls.sent(topic_name, producer, "x" * 100)

        producing = pool.submit(produce)
        while True:
            event = stream.next()
            assert event.kind == "overview"
            seen = Overview.model_validate(event.data)
            rates = {each.topic: each.messages_in_per_s for each in seen.topics}
            if (rates.get(topic_name) or 0) > 1 and (seen.rates.messages_in_per_s or 0) > 1:
                assert (seen.rates.bytes_in_per_s or 0) > 100
                break
            assert time.monotonic() < deadline_s, event
        deadline_s = 0
        producing.result()
    assert len(calls.drained(topic_name, consumer)) > 1

    def is_rated() -> bool:
        """A rate is of the last seconds, and of a read manager that was asked before: so the reading goes on."""
        calls.get(f"/v1/topics/{topic_name}/partitions/0/messages", offset=0)
        return (overview(calls).rates.messages_out_per_s or 0) > 0

    until(is_rated, within_s=WITHIN_S, what="what is read has a rate")


def test_events_come_every_second_and_end_when_the_client_goes(calls: Calls) -> None:
    with events(calls.url) as stream:
        times = [event.data["at_ms"] for event in stream.take(3)]
        assert stream.retry_ms
    assert times == sorted(set(times))
    assert times[-1] - times[0] < WITHIN_S * 1000


def test_bad_requests(calls: Calls) -> None:
    for path in ("/v1/cluster/overview", "/v1/cluster/events"):
        assert_failure(calls.get(path, colour="red"), 400, 40001, outcome=None)
    assert requests.head(calls.url + "/v1/cluster/events", timeout=10).status_code == 405
