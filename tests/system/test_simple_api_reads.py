"""The reading half of the simple API, and what holds for all of it: request ids, session tokens."""

import threading
import time

import pytest
import requests

from tests.calls import Calls, assert_failure
from tests.cluster import READ_MANAGERS, Cluster
from tests.waiting import throughout

UNKNOWN = "no-such-topic"
UNKNOWN_ID = 2_000_000_000


# ---- GET /consumer/consume ----


def test_consume(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    before = time.time_ns() // 1_000_000
    calls.sent(topic_name, producer, "hello", key="greeting")
    answer = calls.consume(topic_name, consumer)
    assert answer.status_code == 200
    body = answer.json()
    assert body == {
        "status": "success",
        "message": "hello",
        "key": "greeting",
        "partition_id": 0,
        "offset": 0,
        "timestamp": body["timestamp"],
        "producer_id": producer,
    }
    assert before <= body["timestamp"] <= time.time_ns() // 1_000_000


def test_consume_nothing(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    answer = calls.consume(topic_name, calls.consumer(topic_name))
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["X-Request-Id"]
    assert "Content-Type" not in answer.headers


def test_consume_takes_turns_and_skips_empty_partitions(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=4)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    for partition_id in (0, 0, 2, 2, 2):
        calls.sent(topic_name, producer, "x", partition_id=partition_id)
    read = [(message["partition_id"], message["offset"]) for message in calls.drained(topic_name, consumer)]
    assert read == [(0, 0), (2, 0), (0, 1), (2, 1), (2, 2)]


def test_consume_of_one_partition_moves_only_its_cursor(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=2)
    producer, whole = calls.producer(topic_name), calls.consumer(topic_name)
    for partition_id in (0, 1):
        calls.sent(topic_name, producer, f"in {partition_id}", partition_id=partition_id)
    assert [m["message"] for m in calls.drained(topic_name, whole, partition_id=1)] == ["in 1"]
    assert calls.size(topic_name, whole).json()["size"] == 1
    assert [m["message"] for m in calls.drained(topic_name, whole)] == ["in 0"]


def test_consumer_of_one_partition_sees_only_that(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=2)
    producer, part = calls.producer(topic_name), calls.consumer(topic_name, partition_id=1)
    for partition_id in (0, 1):
        calls.sent(topic_name, producer, f"in {partition_id}", partition_id=partition_id)
    assert_failure(calls.consume(topic_name, part, partition_id=0), 404, 40402, outcome=None)
    assert calls.size(topic_name, part).json()["size"] == 1
    assert [m["message"] for m in calls.drained(topic_name, part)] == ["in 1"]


def test_consume_failures(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=2)
    elsewhere = calls.topic(f"{topic_name}-other")
    consumer, stranger = calls.consumer(topic_name), calls.consumer(elsewhere)
    for topic, consumer_id in ((topic_name, UNKNOWN_ID), (topic_name, stranger), (UNKNOWN, consumer)):
        assert_failure(calls.consume(topic, consumer_id), 404, 40403, "Consumer not found", outcome=None)
    answer = calls.consume(topic_name, consumer, partition_id=2)
    assert_failure(answer, 404, 40402, "partition not found", outcome=None, details={"partition_id": 2})


def test_consume_waits_for_a_message(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=2)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    answers: list[requests.Response] = []
    url = f"{calls.url}/consumer/consume"
    query = {"topic": topic_name, "consumer_id": str(consumer), "wait_ms": "10000"}
    waiter = threading.Thread(target=lambda: answers.append(requests.get(url, query, timeout=20)))
    waiter.start()
    throughout(lambda: not answers, for_s=0.5, what="it waits")
    calls.sent(topic_name, producer, "at last")
    waiter.join(20)
    assert (answers[0].status_code, answers[0].json()["message"]) == (200, "at last")


def test_consume_waits_no_longer_than_asked(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    consumer = calls.consumer(topic_name)
    started_s = time.monotonic()
    assert calls.consume(topic_name, consumer, wait_ms=1000).status_code == 204
    assert 1.0 <= time.monotonic() - started_s < 6.0


def test_consume_again_under_an_idempotency_key(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=2)
    producer = calls.producer(topic_name)
    consumer, other = calls.consumer(topic_name), calls.consumer(topic_name)
    key = {"Idempotency-Key": "read 1"}
    assert calls.consume(topic_name, consumer, key).status_code == 204
    for number in range(3):
        calls.sent(topic_name, producer, str(number))
    first = calls.consume(topic_name, consumer, key)
    assert first.status_code == 200, "an empty answer is not what the key remembers"
    for _ in range(3):
        assert calls.consume(topic_name, consumer, key).json() == first.json()
    assert calls.size(topic_name, consumer).json()["size"] == 2
    assert calls.consume(topic_name, other, key).status_code == 200
    assert calls.size(topic_name, other).json()["size"] == 2, "another consumer's key is another key"
    rest = calls.drained(topic_name, consumer)
    assert len(rest) == 2
    assert first.json() not in rest


def test_head_on_consume_moves_nothing(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    calls.sent(topic_name, producer, "x")
    query = {"topic": topic_name, "consumer_id": str(consumer)}
    answer = requests.head(f"{calls.url}/consumer/consume", params=query, timeout=10)
    assert (answer.status_code, answer.headers["Allow"], answer.content) == (405, "GET", b"")
    assert calls.size(topic_name, consumer).json()["size"] == 1


# ---- GET /size ----


def test_size(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=2)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    for left in (1, 2, 3):
        calls.sent(topic_name, producer, "x")
        answer = calls.size(topic_name, consumer)
        assert (answer.status_code, answer.json()) == (200, {"status": "success", "size": left})
    for left in (2, 1, 0):
        calls.consume(topic_name, consumer)
        assert calls.size(topic_name, consumer).json() == {"status": "success", "size": left}


def test_size_failures(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    elsewhere = calls.topic(f"{topic_name}-other")
    consumer, stranger = calls.consumer(topic_name), calls.consumer(elsewhere)
    for topic, consumer_id in ((topic_name, UNKNOWN_ID), (topic_name, stranger), (UNKNOWN, consumer)):
        assert_failure(calls.size(topic, consumer_id), 404, 40403, "Consumer not found", outcome=None)


# ---- what holds for all of them ----


def test_every_answer_has_a_request_id_that_the_client_did_not_choose(calls: Calls, topic_name: str) -> None:
    mine = {"X-Request-Id": "chosen-by-the-client"}
    calls.topic(topic_name)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    answers = [
        calls.post("/topics", {"name": topic_name}, mine),
        calls.get("/topics", mine),
        calls.partitions(topic_name, mine),
        calls.post("/producer/register", {"topic": topic_name}, mine),
        calls.post("/consumer/register", {"topic": topic_name}, mine),
        calls.produce(topic_name, producer, "x", mine),
        calls.consume(topic_name, consumer, mine),
        calls.consume(topic_name, consumer, mine),
        calls.get("/no/such/path", mine),
        calls.get("/internal/topics", mine),
        calls.get("/docs", mine),
    ]
    ids = [answer.headers["X-Request-Id"] for answer in answers]
    assert all(len(request_id) == 32 for request_id in ids)
    assert len(set(ids)) == len(ids)


def test_the_same_request_id_from_a_client_is_not_the_same_request(calls: Calls, topic_name: str) -> None:
    """Claims are remembered under the request id: a client that could choose it could repeat another's read."""
    calls.topic(topic_name)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    for number in range(2):
        calls.sent(topic_name, producer, str(number))
    mine = {"X-Request-Id": "0" * 32}
    assert [calls.consume(topic_name, consumer, mine).json()["message"] for _ in range(2)] == ["0", "1"]


@pytest.mark.parametrize("manager", READ_MANAGERS)
def test_session_token(stack: Cluster, calls: Calls, topic_name: str, manager: str) -> None:
    created = calls.create_topic(topic_name, partitions=1)
    registered = [calls.register_producer(topic_name), calls.register_consumer(topic_name)]
    tokens = [answer.headers["X-Myqueue-Token"] for answer in (created, *registered)]
    with requests.Session() as session:
        direct = Calls(stack.address_of(manager), session)
        for token in tokens:
            answer = direct.partitions(topic_name, {"X-Myqueue-Token": token})
            assert answer.status_code == 200
            assert topic_name in direct.get("/topics", {"X-Myqueue-Token": token}).json()["topics"]
        timeline, _, _ = tokens[0].partition("-")
        ahead = {"X-Myqueue-Token": f"{timeline}-ffffffffffff"}
        assert direct.partitions(topic_name, ahead).status_code == 200, "a standby that is behind has no say"


def test_consume_answers_with_a_session_token(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    calls.sent(topic_name, producer, "x")
    token = calls.consume(topic_name, consumer).headers["X-Myqueue-Token"]
    assert calls.partitions(topic_name, {"X-Myqueue-Token": token}).status_code == 200


@pytest.mark.parametrize("token", ["", "x", "1", "1-", "1-xyz", "-1-0", "1-0 OR 1=1"])
def test_bad_session_tokens(calls: Calls, token: str) -> None:
    assert_failure(calls.get("/topics", {"X-Myqueue-Token": token}), 400, 40001, outcome=None)
