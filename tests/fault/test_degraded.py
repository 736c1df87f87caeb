"""While no PostgreSQL server answers: produce and fetch go on, the rest is refused soon, and nothing is lost."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
import requests

from tests.calls import Calls
from tests.cluster import READ_MANAGERS, STANDBYS, Cluster
from tests.fault.library_clients import LibraryClients
from tests.fault.request_loops import Answered, RequestLoops, Send
from tests.fault.test_doctor import examined
from tests.integration.postgres_servers import hanging
from tests.waiting import let_pass, until

TRIO = ("postgres-1", *STANDBYS)
SETTLE_S = 3.0  # until every process has noticed
LONGEST_S = 8.0  # of one request, on a busy machine; about 4 on a quiet one, when all servers hang at once
UNKNOWN_ID = 999_999

GOES_ON = ("topics", "topic", "partitions", "routing", "browse", "produce", "cluster")
REFUSED = ("consume", "lag", "unknown topic", "unknown consumer", "unknown producer", "produce to an unknown topic")


@contextmanager
def hung(cluster: Cluster, *names: str) -> Iterator[None]:
    """Nothing restarts them meanwhile: their runner hangs too."""
    runner = psutil.Process(cluster.local.pid(TRIO[0])).parent()
    assert runner is not None
    runner.suspend()
    try:
        with hanging(cluster.local, *names):
            yield
    finally:
        runner.resume()


@contextmanager
def stopped(cluster: Cluster) -> Iterator[None]:
    for name in TRIO:
        cluster.stop(name)
    yield
    for name in TRIO:
        cluster.start(name)


def loops_over(calls: Calls, topic: str) -> RequestLoops:
    url = calls.url
    producer, consumer = calls.producer(topic), calls.consumer(topic)

    def get(path: str, **query: Any) -> Send:
        return lambda session: session.get(url + path, params=query, timeout=15)

    def post(path: str, body: Any) -> Send:
        return lambda session: session.post(url + path, json=body, timeout=15)

    message = {"topic": topic, "message": "m"}
    return RequestLoops(
        {
            "topics": get("/topics"),
            "topic": get(f"/v1/topics/{topic}"),
            "partitions": get(f"/topics/{topic}/partitions"),
            "routing": get(f"/v1/routing/{topic}"),
            "browse": get(f"/v1/topics/{topic}/partitions/0/messages", offset=0, limit=5),
            "lag": get(f"/v1/consumers/{consumer}/lag"),
            "cluster": get("/v1/cluster"),
            "produce": post("/producer/produce", message | {"producer_id": producer}),
            "consume": get("/consumer/consume", topic=topic, consumer_id=consumer),
            "unknown topic": get("/v1/topics/no-such-topic"),
            "unknown consumer": get(f"/v1/consumers/{UNKNOWN_ID}"),
            "unknown producer": post("/producer/produce", message | {"producer_id": UNKNOWN_ID}),
            "produce to an unknown topic": post(
                "/producer/produce", message | {"topic": "no-such-topic", "producer_id": producer}
            ),
        }
    )


@pytest.mark.parametrize(
    ("how", "away_s"),
    [
        ("hang", 8.0),
        pytest.param("hang", 40.0, marks=pytest.mark.slow),
        pytest.param("stop", 20.0, marks=pytest.mark.slow),
    ],
)
def test_produce_and_fetch_go_on_without_postgresql(
    cluster: Cluster, calls: Calls, topic_name: str, how: str, away_s: float
) -> None:
    calls.topic(topic_name, partitions=2)
    calls.topic(topic_name + "-library", partitions=2)
    loops, library = loops_over(calls, topic_name), LibraryClients(cluster.url, topic_name + "-library")
    with loops.running(), library.running():
        until(lambda: len(library.read) > 20 and loops.all("consume"), within_s=20, what="everything is under way")
        with hung(cluster, *TRIO) if how == "hang" else stopped(cluster):
            away_from_s = time.monotonic()
            let_pass(SETTLE_S)
            degraded_from_s, sent, read = time.monotonic(), len(library.sent), len(library.read)
            refused = calls.create_topic(topic_name + "-new", partitions=1)
            assert (refused.status_code, refused.headers.get("Retry-After")) == (503, "1"), refused.text
            let_pass(away_s - SETTLE_S)
            degraded_to_s = time.monotonic() - 1.0  # those that began later may be answered when it is back
            assert len(library.sent) - sent >= 10, "the library's producer goes on"
            assert len(library.read) - read >= 10, "and so does its consumer"
        until(lambda: works(calls, topic_name), within_s=30, what="it recovers by itself")
        away_to_s = time.monotonic()
        let_pass(1.0)
    for name in GOES_ON:
        assert loops.between(name, degraded_from_s, degraded_to_s), name
        assert {each.status for each in loops.all(name)} == {200}, (name, failures(loops.all(name)))
    for name in REFUSED:
        answers = loops.between(name, degraded_from_s, degraded_to_s)
        assert answers, f"no answer in time: {name}"
        assert {(each.status, each.retry_after) for each in answers} == {(503, "1")}, (name, failures(answers))
    for name in (*GOES_ON, *REFUSED):
        assert max(each.took_s for each in loops.between(name, away_from_s, away_to_s)) < LONGEST_S, name
        assert not {0, 500, 502, 504} & {each.status for each in loops.all(name)}, failures(loops.all(name))
    shown = loops.between("cluster", degraded_from_s, degraded_to_s)
    assert any("PostgreSQL has no primary" in each.body for each in shown)
    assert sorted(set(library.read), key=int) == library.sent, "nothing lost, nothing skipped"
    assert len(library.read) == len(library.sent), "and in this outage nothing came again"
    if away_s < 30:
        assert library.errors == [], "commits that fail are told only when they last"


@pytest.mark.slow
def test_a_read_manager_that_was_never_asked_tells_the_state_of_the_cluster(cluster: Cluster) -> None:
    died = {name: cluster.kill(name) for name in READ_MANAGERS}
    for name, pid in died.items():
        cluster.await_restart(name, pid, within_s=30)
    let_pass(SETTLE_S)
    with hung(cluster, *TRIO):
        let_pass(SETTLE_S)
        for name in READ_MANAGERS:
            answer = requests.get(cluster.address_of(name) + "/v1/cluster", timeout=15)
            assert answer.status_code == 200, (name, answer.text)
            assert [(each["broker_id"], each["state"]) for each in answer.json()["brokers"]] == [
                (1, "active"),
                (2, "active"),
                (3, "active"),
            ]
            assert any("the catalog cannot be read" in each for each in answer.json()["degraded"])


@pytest.mark.slow
def test_members_read_on_while_no_standby_confirms(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    """The write manager cannot verify then that it is the active one, and gives no lease another lifetime."""
    calls.topic(topic_name, partitions=2)
    library = LibraryClients(cluster.url, topic_name)
    with library.running():
        until(lambda: len(library.read) > 20, within_s=20, what="everything is under way")
        with hung(cluster, *STANDBYS):
            let_pass(SETTLE_S)
            read = len(library.read)
            let_pass(7.0)  # two leases and more
            assert len(library.read) - read >= 10, "it reads on"
        until(lambda: works(calls, topic_name), within_s=30, what="it recovers by itself")
        let_pass(1.0)
    assert sorted(library.read, key=int) == library.sent, "nothing lost, skipped or repeated"
    assert library.errors == []


def works(calls: Calls, topic: str) -> bool:
    made = calls.create_topic(topic + "-new", partitions=1)
    return made.status_code in (201, 409) and calls.get("/v1/topics/no-such-topic").status_code == 404


def failures(answers: list[Answered]) -> set[tuple[int, str]]:
    return {(each.status, each.body[:200]) for each in answers if each.status != 200}


@pytest.mark.slow
def test_doctor_and_the_cluster_state_tell_that_no_standby_confirms(cluster: Cluster) -> None:
    with hanging(cluster.local, *STANDBYS):

        def shown() -> bool:
            cluster_state = requests.get(cluster.url + "/v1/cluster", timeout=10).json()
            return any("no standby confirms" in each for each in cluster_state.get("degraded", ()))

        until(shown, within_s=30, what="the state of the cluster tells it")
        assert examined(cluster.url)[1]["PostgreSQL"]["state"] == "failure"
