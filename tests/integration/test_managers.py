"""Read-your-writes over standbys that lag or die, and a topic creation that was cut off half-way."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import psycopg2
import pytest
import requests

from myqueue.protocol import http_headers, internal
from stack.local import LocalStack
from tests.calls import token_of
from tests.cluster import Cluster
from tests.integration.postgres_servers import hanging
from tests.integration.test_metadata import replay_paused
from tests.waiting import until


def post(stack: LocalStack, path: str, body: object, expect: int = 201) -> requests.Response:
    answer = requests.post(stack.url + path, json=body, timeout=10)
    assert answer.status_code == expect, answer.text
    return answer


def job_post(stack: LocalStack, path: str, body: object, expect: int) -> requests.Response:
    secret = {"X-Myqueue-Secret": stack.secrets.cluster_secret}
    answer = requests.post(stack.internal_url + path, json=body, headers=secret, timeout=10)
    assert answer.status_code == expect, answer.text
    return answer


def test_reads_see_writes_while_both_standbys_lag(managed: LocalStack) -> None:
    """Nothing is replayed, so only the token, or the question to the write manager, can find the new topic."""
    post(managed, "/topics", {"name": "before-the-lag"})
    with replay_paused(managed, "postgres-2"), replay_paused(managed, "postgres-3"):
        answer = post(managed, "/topics", {"name": "during-the-lag", "partitions": 2})
        token = {"X-Myqueue-Token": answer.headers["X-Myqueue-Token"]}
        for _ in range(4):  # both read managers
            listed = requests.get(managed.url + "/topics", headers=token, timeout=10).json()
            assert "during-the-lag" in listed["topics"]
            found = requests.get(managed.url + "/topics/during-the-lag/partitions", timeout=10)
            assert len(found.json()["partitions"]) == 2
        consumer = post(managed, "/consumer/register", {"topic": "during-the-lag"}).json()["consumer_id"]
        named = post(managed, "/consumer/register", {"topic": "before-the-lag", "name": "n"}).json()["consumer_id"]
        for _ in range(2):  # both read managers
            query = {"topic": "before-the-lag", "name": "n"}
            found = requests.get(managed.url + "/v1/consumers", query, timeout=10).json()
            assert [entry["consumer_id"] for entry in found["consumers"]] == [named]
        producer = post(managed, "/producer/register", {"topic": "during-the-lag"}).json()["producer_id"]
        sent = {"topic": "during-the-lag", "producer_id": producer, "message": "hello"}
        post(managed, "/producer/produce", sent, expect=200)
        query = {"topic": "during-the-lag", "consumer_id": consumer}
        assert requests.get(managed.url + "/size", params=query, timeout=10).json()["size"] == 1
        consumed = requests.get(managed.url + "/consumer/consume", params=query, timeout=10)
        assert consumed.json()["message"] == "hello"
        assert requests.get(managed.url + "/size", params=query, timeout=10).json()["size"] == 0


def test_figures_are_seen_while_both_standbys_lag(managed: LocalStack) -> None:
    made = requests.put(managed.url + "/v1/topics/measured", json={"partitions": 1}, timeout=10).json()
    consumer = post(managed, "/consumer/register", {"topic": "measured"}).json()["consumer_id"]
    run = job_post(managed, internal.BEGIN_RUN.path, {"job": "measured", "holder": "test"}, 201).json()["run_id"]
    place = {"topic": "measured", "topic_id": made["topic_id"], "partition_id": 0}
    new = {"from_offset": 0, "to_offset": 3, "messages": 3, "bytes": 30, "beginning_offset": 0, "end_offset": 3}
    body = {"query_id": "q", "batch_id": 0, "partitions": [{**place, **new}]}
    with replay_paused(managed, "postgres-2"), replay_paused(managed, "postgres-3"):
        answer = job_post(managed, internal.POST_RESULTS.path_for(run_id=run), body, 200)
        token = {"X-Myqueue-Token": answer.headers["X-Myqueue-Token"]}
        for _ in range(2):  # both read managers
            query = {"topic": "measured", "history": "1"}
            found = requests.get(managed.url + "/v1/stats/partitions", query, headers=token, timeout=10).json()
            assert [entry["messages"] for entry in found["partitions"]] == [3]
            assert len(found["partitions"][0]["history"]) == 1
            listed = requests.get(managed.url + "/v1/stats/runs", {"job": "measured"}, headers=token, timeout=10).json()
            assert [(entry["run_id"], entry["outcome"]) for entry in listed["runs"]] == [(run, "running")]
            found = requests.get(managed.url + "/v1/consumers", {"topic": "measured"}, headers=token, timeout=10).json()
            assert [entry["consumer_id"] for entry in found["consumers"]] == [consumer]
            gone = requests.get(managed.url + "/v1/stats/topics", {"topic": "nowhere"}, headers=token, timeout=10)
            assert (gone.status_code, gone.json()["error_code"]) == (404, 40401)


def test_the_cluster_is_seen_while_both_standbys_lag(managed: LocalStack) -> None:
    def cluster(token: dict[str, str]) -> dict[str, Any]:
        answer = requests.get(managed.url + "/v1/cluster", headers=token, timeout=10)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    # The token: a standby may not have replayed yet what earlier tests made.
    topics = cluster(token_of(post(managed, "/topics", {"name": "counted-before-the-lag"})))["topics"]
    with replay_paused(managed, "postgres-2"), replay_paused(managed, "postgres-3"):
        token = token_of(post(managed, "/topics", {"name": "counted-during-the-lag"}))

        def roles_are_known() -> bool:
            found = cluster(token)
            assert found["topics"] == topics + 1
            return [database["role"] for database in found["databases"]] == ["primary", "standby", "standby"]

        for _ in range(4):  # both read managers
            until(roles_are_known, within_s=20, what="the read manager's probes of all servers are answered")


def test_a_bad_token_is_refused(managed: LocalStack) -> None:
    answer = requests.get(managed.url + "/topics", headers={"X-Myqueue-Token": "yesterday"}, timeout=10)
    assert answer.status_code == 400
    assert "session token" in answer.json()["message"]


def test_reads_go_on_when_a_standby_dies(managed: LocalStack) -> None:
    post(managed, "/topics", {"name": "standby-dies"})
    managed.stop("postgres-2")
    try:
        for _ in range(10):
            answer = requests.get(managed.url + "/topics/standby-dies/partitions", timeout=10)
            assert answer.status_code == 200, answer.text
    finally:
        managed.start("postgres-2")


def test_reads_are_fast_again_while_both_standbys_hang(managed: LocalStack) -> None:
    def read_s() -> float:
        started_s = time.monotonic()
        answer = requests.get(managed.url + "/topics", timeout=10)
        assert answer.status_code == 200, answer.text
        return time.monotonic() - started_s

    post(managed, "/topics", {"name": "standbys-hang"})
    with hanging(managed, "postgres-2", "postgres-3"):
        noticed_s = time.monotonic() + 3
        while time.monotonic() < noticed_s:
            read_s()
        took_s = [read_s() for _ in range(20)]
    assert median(took_s) < 1, "each read waits for the servers that hang"

    def is_confirmed() -> bool:
        again = {"name": "standbys-are-back"}
        return requests.post(managed.url + "/topics", json=again, timeout=10).status_code in (201, 409)

    until(is_confirmed, within_s=20, what="a standby confirms writes again, for the tests that follow")


def test_the_write_manager_goes_on_without_postgres(managed: LocalStack) -> None:
    """With what it has in memory. What it does not know there is a 503, never a 404."""
    post(managed, "/topics", {"name": "goes-on", "partitions": 1})
    producer = post(managed, "/producer/register", {"topic": "goes-on"}).json()["producer_id"]
    consumer = post(managed, "/consumer/register", {"topic": "goes-on", "from": "earliest"}).json()["consumer_id"]
    message = {"topic": "goes-on", "producer_id": producer, "message": "x"}
    post(managed, "/producer/produce", message, expect=200)
    secret = {"X-Myqueue-Secret": managed.secrets.cluster_secret}

    def lease() -> requests.Response:
        url = managed.internal_url + internal.LEASE.path_for(consumer_id=consumer)
        body = {"member": "m", "released": [], "leave": False}
        return requests.post(url, json=body, headers=secret, timeout=10)

    def status() -> dict[str, Any]:
        url = managed.internal_url + internal.WRITE_MANAGER_STATUS.path
        found: dict[str, Any] = requests.get(url, headers=secret, timeout=10).json()
        return found

    [held] = lease().json()["leases"]
    epoch = status()["epoch"]
    query = {"topic": "goes-on", "consumer_id": consumer}
    with hanging(managed, "postgres-1"):
        until(lambda: status()["degraded"], within_s=10, what="the write manager says what it has to do without")
        assert (status()["active"], status()["epoch"]) == (True, epoch)
        refused = lease()
        assert (refused.status_code, refused.json()["error_code"]) == (503, 50304), "only memory backs it"
        for number in range(3):
            assert post(managed, "/producer/produce", message, expect=200).json()["offset"] == number + 1
        consumed = requests.get(managed.url + "/consumer/consume", params=query, timeout=10)
        assert consumed.status_code == 503, consumed.text
        assert consumed.headers["Retry-After"]
        offsets = [{"partition_id": 0, "offset": 1, "generation": held["generation"]}]
        commit = post(managed, f"/v1/consumers/{consumer}/commit", {"member": "m", "offsets": offsets}, expect=503)
        assert commit.json()["outcome"] == "not_written"
        post(managed, "/producer/produce", {**message, "producer_id": producer + 1}, expect=503)
        assert requests.delete(managed.url + "/v1/topics/nowhere", timeout=10).status_code == 503
    until(lambda: lease().status_code == 200, within_s=20, what="leases are verified again")
    assert (status()["epoch"], status()["degraded"]) == (epoch, None)
    post(managed, "/producer/produce", {**message, "producer_id": producer + 1}, expect=404)
    requests.post(f"{managed.url}/v1/consumers/{consumer}/poll", json={"member": "m", "leave": True}, timeout=10)
    until(
        lambda: requests.get(managed.url + "/consumer/consume", params=query, timeout=10).status_code == 200,
        within_s=10,
        what="the consumer reads on",
    )


def test_the_reconciler_finishes_a_half_done_topic(managed: LocalStack) -> None:
    """A topic in the catalog that no broker has: what a crash in the middle of a creation leaves behind."""
    name = "half-done"
    managed.stop("write-manager-1")
    with psycopg2.connect(
        host="127.0.0.1",
        port=managed.port_of("postgres-1"),
        user=managed.database().user,
        password=managed.secrets.database_password,
        dbname=managed.database().name,
    ) as connection:
        cursor = connection.cursor()
        cursor.execute("INSERT INTO topic (name, topic_id, replication) VALUES (%s, %s, 1)", (name, str(uuid.uuid4())))
        cursor.execute("UPDATE id_counter SET next_id = next_id + 3 WHERE kind = 'partition' RETURNING next_id - 3")
        row = cursor.fetchone()
        assert row is not None
        for number in range(3):
            cursor.execute(
                "INSERT INTO partition_metadata (id, topic_name, partition_id, replicas, founders)"
                " SELECT %s, %s, %s, ARRAY[broker_id], jsonb_build_array(jsonb_build_array(broker_id, incarnation))"
                " FROM broker_metadata WHERE broker_id = %s",
                (row[0] + number, name, number, number + 1),
            )
    connection.close()
    managed.start("write-manager-1")

    def has_all_leaders() -> bool:
        answer = requests.get(f"{managed.url}/topics/{name}/partitions", timeout=10)
        return answer.status_code == 200 and all(p["leader"] for p in answer.json()["partitions"])

    until(has_all_leaders, within_s=20, what="every partition is held by its broker")
    producer = post(managed, "/producer/register", {"topic": name}).json()["producer_id"]
    for number in range(3):
        sent = {"topic": name, "producer_id": producer, "message": "x", "partition_id": number}
        assert post(managed, "/producer/produce", sent, expect=200).json()["offset"] == 0


def test_commits_and_runs_outlive_the_write_manager_and_leases_begin_anew(managed: LocalStack) -> None:
    run = job_post(managed, internal.BEGIN_RUN.path, {"job": "outlives", "holder": "test", "tick": 5}, 201).json()[
        "run_id"
    ]
    post(managed, "/topics", {"name": "committed", "partitions": 1})
    messages = {"messages": [{"value": str(number)} for number in range(5)]}
    post(managed, "/v1/topics/committed/messages", messages, expect=200)
    consumer = post(managed, "/consumer/register", {"topic": "committed", "from": "earliest"}).json()["consumer_id"]
    path = f"/v1/consumers/{consumer}"
    [before] = post(managed, f"{path}/poll", {}, expect=200).json()["leases"]
    commit = {"offsets": [{"partition_id": 0, "offset": 3, "generation": before["generation"]}]}
    key = {"Idempotency-Key": "before the restart"}

    def committed() -> requests.Response:
        return requests.post(managed.url + f"{path}/commit", json=commit, headers=key, timeout=10)

    first = committed()
    assert first.status_code == 200, first.text
    managed.stop("write-manager-1")
    managed.start("write-manager-1")
    until(lambda: committed().status_code == 200, within_s=20, what="the repeated commit is known")
    assert committed().json() == first.json()
    job_post(managed, internal.RENEW_RUN.path_for(run_id=run), {}, 200)
    job_post(managed, internal.BEGIN_RUN.path, {"job": "outlives", "holder": "another"}, 409)
    job_post(managed, internal.END_RUN.path_for(run_id=run), {"outcome": "succeeded"}, 200)
    taken = job_post(managed, internal.BEGIN_RUN.path, {"job": "outlives", "holder": "another", "tick": 5}, 409)
    assert taken.json()["error_code"] == 40911

    def leased_again() -> Any:
        answer = requests.post(managed.url + f"{path}/poll", json={}, timeout=10)
        return answer.status_code == 200 and answer.json()["leases"]

    [after] = until(leased_again, within_s=20, what="the partition is leased again")
    assert after["generation"] > before["generation"]
    assert after["cursor"] == 3


def test_a_silent_broker_gets_no_partitions_until_it_is_back(managed: LocalStack) -> None:
    managed.stop("broker-3")
    made: list[str] = []

    def partitions(name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = requests.get(f"{managed.url}/topics/{name}/partitions", timeout=10).json()[
            "partitions"
        ]
        return found

    def is_avoided() -> bool:
        made.append(f"spread-{uuid.uuid4().hex[:8]}")
        post(managed, "/topics", {"name": made[-1], "partitions": 6})
        return all(set(p["replicas"]) == {1, 2} for p in partitions(made[-1]))

    try:
        until(is_avoided, within_s=15, what="new topics avoid the silent broker")
    finally:
        managed.start("broker-3")
    until(
        lambda: all(set(p["replicas"]) == {1, 2, 3} for p in partitions(made[-1])),
        within_s=20,
        what="the broker that came back takes replicas of what was made without it",
    )


@pytest.mark.parametrize("replication", [4, 15])
def test_replication_above_the_registered_brokers_is_refused(managed: LocalStack, replication: int) -> None:
    answer = post(managed, "/topics", {"name": "too-many-copies", "replication": replication}, expect=400)
    assert "3 are registered" in answer.json()["message"]


@pytest.mark.slow
def test_registrations_that_wait_for_postgres_do_not_cut_off_the_write_manager(managed: LocalStack) -> None:
    """They hold every thread and fill the queue; nginx still finds that the process answers, and hands on what needs
    neither a thread nor PostgreSQL."""
    queued, checks_s = 200, 12.0  # nginx checks every 5 s
    topic = f"t-{uuid.uuid4().hex[:12]}"
    post(managed, "/topics", {"name": topic})
    producer = post(managed, "/producer/register", {"topic": topic}).json()["producer_id"]
    message = {"topic": topic, "producer_id": producer, "message": "x"}
    cluster = Cluster(managed)
    over_s = time.monotonic() + checks_s

    def register(_: int) -> None:
        while time.monotonic() < over_s:
            requests.post(managed.url + "/consumer/register", json={"topic": topic}, timeout=30)

    cluster.pause("postgres-1")
    try:
        with ThreadPoolExecutor(queued) as pool:
            registering = [pool.submit(register, number) for number in range(queued)]
            answers = []
            while time.monotonic() < over_s:
                answers.append(post(managed, "/producer/produce", message, expect=200))
            assert any(not one.done() for one in registering), "they queued until the end"
            cluster.resume("postgres-1")
            for one in registering:
                one.result()
        assert answers
    finally:
        cluster.resume("postgres-1")
        cluster.await_healthy(within_s=60)


def stored_epoch(stack: LocalStack) -> int:
    with (
        psycopg2.connect(
            host="127.0.0.1",
            port=stack.port_of("postgres-1"),
            user="postgres",
            password=stack.secrets.admin_password,
            dbname=stack.database().name,
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT epoch FROM write_manager_epoch")
        row = cursor.fetchone()
    connection.close()
    assert row is not None
    epoch: int = row[0]
    return epoch


@pytest.mark.timeout(300)
def test_a_write_manager_gets_above_what_brokers_have_seen(managed: LocalStack) -> None:
    """As after a restore of PostgreSQL: the brokers remember a write manager that the catalog does not."""
    ahead = stored_epoch(managed) + 1000
    path = internal.MOVE_LEADER.path_for(topic_id=uuid.uuid4(), partition_id=0)
    for name in ("broker-1", "broker-2", "broker-3"):
        answer = requests.post(
            managed.address_of(name) + path,
            json={"broker_id": None},
            headers={http_headers.SECRET: managed.secrets.cluster_secret, http_headers.EPOCH: str(ahead)},
            timeout=10,
        )
        assert answer.status_code == 404  # no such partition, but it was asked under that epoch
    assert_goes_on_above(managed, ahead)


@pytest.mark.timeout(300)
def test_a_write_manager_gets_above_what_a_broker_says_when_it_registers(managed: LocalStack) -> None:
    ahead = stored_epoch(managed) + 1000
    registration = {
        "broker_id": 99,
        "endpoint": "http://127.0.0.1:9",
        "raft_address": "127.0.0.1:9",
        "hostname": "here",
        "incarnation": "c" * 16,
        "clock_ms": 0,
        "partitions": [],
        "epoch": ahead,
    }

    def is_above() -> bool:
        """A broker registers until it is accepted: PostgreSQL may be too busy to raise the epoch at the first time."""
        if stored_epoch(managed) < ahead:
            job_post(managed, internal.REGISTER_BROKER.path, registration, 503)
        return stored_epoch(managed) >= ahead

    until(is_above, within_s=30, pause_s=0.5, what="the epoch that the broker knows is stored")
    assert_goes_on_above(managed, ahead)


def assert_goes_on_above(managed: LocalStack, ahead: int) -> None:
    topic = f"restored-{uuid.uuid4().hex[:8]}"
    made = requests.put(f"{managed.url}/v1/topics/{topic}", json={"partitions": 3}, timeout=20)
    assert made.status_code in (201, 502, 503, 504), made.text
    # Both write managers may have to start again, one after the other.
    until(lambda: stored_epoch(managed) > ahead, within_s=120, what="a write manager with a higher epoch is active")

    answers: list[str] = []

    def is_written() -> bool:
        try:
            made = requests.put(f"{managed.url}/v1/topics/{topic}", json={"partitions": 3}, timeout=20)
            if made.status_code not in (200, 201):
                answers[:] = [made.text]
                return False  # to register would create it, with other settings
            producer = requests.post(f"{managed.url}/producer/register", json={"topic": topic}, timeout=20)
            body = {"topic": topic, "producer_id": producer.json().get("producer_id"), "message": "hello"}
            sent = requests.post(f"{managed.url}/producer/produce", json=body, timeout=20)
        except requests.RequestException as error:
            answers[:] = [repr(error)]
            return False
        answers[:] = [made.text, producer.text, sent.text]
        return sent.status_code == 200

    try:
        until(is_written, within_s=120, what="the topic's partitions are made and take messages")
    except AssertionError as error:
        raise AssertionError(f"{error}; answers: {answers}; {managed.status()}") from None
