"""Brokers that come back without their data: one of three is rebuilt, and when all have lost it a new log begins."""

from collections.abc import Callable, Iterator

import psycopg2
import pytest
import requests

from myqueue.protocol import internal
from tests.calls import Calls
from tests.cluster import BROKERS, WRITE_MANAGERS, Cluster, running_cluster
from tests.waiting import until

pytestmark = pytest.mark.timeout(120)


def fill(calls: Calls, topic: str, replication: int) -> tuple[int, int]:
    """Six messages, of which the consumer has read three. Producer and consumer."""
    made = calls.create_topic(topic, partitions=1, replication=replication)
    assert made.status_code == 201, made.text
    producer, consumer = calls.producer(topic), calls.consumer(topic, **{"from": "earliest"})
    for number in range(6):
        assert calls.sent(topic, producer, f"old {number}") == (0, number)
    for number in range(3):
        assert calls.consume(topic, consumer).json()["message"] == f"old {number}"
    return producer, consumer


def check_new_log(cluster: Cluster, calls: Calls, topic: str, producer: int, consumer: int) -> None:
    def is_written() -> bool:
        answer = calls.produce(topic, producer, "new 0", {"Idempotency-Key": "new 0"})
        if answer.status_code == 200:
            assert answer.json()["offset"] == 0, "the log is a new one"
        else:
            assert answer.status_code == 503, answer.text
        return answer.status_code == 200

    until(is_written, within_s=20, what="a message is taken", pause_s=0.2)
    assert calls.sent(topic, producer, "new 1") == (0, 1)
    later = calls.consumer(topic, **{"from": "earliest"})
    assert [message["message"] for message in calls.drained(topic, later)] == ["new 0", "new 1"]
    # One whose cursor was beyond the end of the new log begins with it.
    assert [message["message"] for message in calls.drained(topic, consumer)] == ["new 0", "new 1"]
    until(
        lambda: stored(cluster, topic)[0] is not None and stored(cluster, topic)[1] == 2,
        within_s=10,
        what="what the new log's leader says is stored, although terms begin anew",
    )


def stored(cluster: Cluster, topic: str) -> tuple[int | None, int]:
    """Leader and end of the partition, as PostgreSQL has them."""
    database = cluster.local.database()
    connection = psycopg2.connect(
        host="127.0.0.1",
        port=cluster.local.port_of("postgres-1"),
        user=database.user,
        password=database.password,
        dbname=database.name,
    )
    try:
        cursor = connection.cursor()
        cursor.execute("SELECT broker_id, end_offset FROM partition_metadata WHERE topic_name = %s", (topic,))
        [(leader, end_offset)] = cursor.fetchall()
        return leader, end_offset
    finally:
        connection.close()


def lose_everything(cluster: Cluster, calls: Calls, names: dict[int, str], lose: Callable[[], None]) -> None:
    filled = {replication: fill(calls, topic, replication) for replication, topic in names.items()}
    lose()
    for replication, topic in names.items():
        check_new_log(cluster, calls, topic, *filled[replication])


def test_a_new_log_begins_when_all_replicas_were_erased(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    def erase_all() -> None:
        for name in BROKERS:
            cluster.stop(name)
        for name in BROKERS:
            cluster.erase(name)
            cluster.start(name)

    lose_everything(cluster, calls, {1: f"{topic_name}-1", 3: f"{topic_name}-3"}, erase_all)


@pytest.mark.slow
def test_what_one_replica_still_has_is_waited_for(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    """A majority has lost its data: no leader, no new log, and everything that is left can be read."""
    fill(calls, topic_name, 3)
    writes = cluster.active_write_manager()
    log = cluster.log_of(writes)
    for name in BROKERS[:2]:
        cluster.stop(name)
    for name in BROKERS[:2]:
        cluster.erase(name)
        cluster.start(name)
    until(
        lambda: cluster.log_of(writes)[len(log) :].count("broker lost its data") == 2,
        within_s=15,
        what="both are back without data",
    )
    assert calls.produce(topic_name, calls.producer(topic_name), "refused").status_code == 503
    assert [value for _, value in cluster.messages("broker-3", topic_name)] == [b"old %d" % n for n in range(6)]


def member_changes(cluster: Cluster, topic: str) -> int:
    lines = [line for name in WRITE_MANAGERS for line in cluster.log_of(name).splitlines()]
    return sum("member change" in line and '"done"' in line and topic in line for line in lines)


def voters(cluster: Cluster, topic: str) -> list[int] | None:
    """As the active write manager has them in memory: what it has stored may be older."""
    answer = cluster.ask(cluster.internal_url + internal.CATALOG_TOPIC.path_for(topic=topic))
    found: list[int] | None = answer.json()["partitions"][0]["voters"]
    return found


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("memory"), storage="memory") as cluster:
        cluster.await_placement()
        yield cluster


@pytest.mark.slow
def test_brokers_in_memory(in_memory: Cluster, topic_name: str) -> None:
    """One at a time nothing is lost; all together everything is."""
    with requests.Session() as session:
        calls = Calls(in_memory.url, session)
        producer, consumer = fill(calls, topic_name, 3)
        for name in BROKERS:
            changes = member_changes(in_memory, topic_name)
            died = in_memory.kill(name)
            in_memory.await_restart(name, died, within_s=20)  # as a member that does not vote yet
            # How many changes are known to be done is open: one whose answer was late is done all the same.
            until(
                lambda: (
                    member_changes(in_memory, topic_name) > changes  # noqa: B023
                    and sorted(voters(in_memory, topic_name) or ()) == [1, 2, 3]
                ),
                within_s=20,
                what=f"{name} is a voter again",
            )
        assert [m["message"] for m in calls.drained(topic_name, consumer)] == ["old 3", "old 4", "old 5"]
        assert calls.sent(topic_name, producer, "more") == (0, 6)

        def kill_all() -> None:
            for name in BROKERS:
                in_memory.kill(name)

        lose_everything(in_memory, calls, {1: f"{topic_name}-1", 3: f"{topic_name}-3"}, kill_all)
        check_new_log(in_memory, calls, topic_name, producer, consumer)
