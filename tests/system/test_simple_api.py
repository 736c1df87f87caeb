"""The writing half of the simple API and its listings, through the port: success and every failure, whole."""

import time
from typing import Any

import requests

from myqueue.protocol.partitioner import partition_for
from tests.calls import Calls, assert_failure, token_of
from tests.waiting import until

UNKNOWN = "no-such-topic"
UNKNOWN_ID = 2_000_000_000


def ends(calls: Calls, topic: str) -> list[int]:
    return [partition["end_offset"] for partition in calls.partitions(topic).json()["partitions"]]


# ---- POST /topics ----


def test_create_topic_with_defaults(calls: Calls, topic_name: str) -> None:
    answer = calls.create_topic(topic_name)
    assert answer.status_code == 201
    body = answer.json()
    assert body == {"status": "success", "message": body["message"], "partitions": [0, 1, 2, 3]}
    assert topic_name in body["message"]

    def spread() -> bool:
        return {partition["leader"] for partition in calls.partitions(topic_name).json()["partitions"]} == {1, 2, 3}

    # On a busy machine the one that is to lead may lose its first election, and gets its turn later.
    until(spread, within_s=20, what="all brokers lead partitions")


def test_create_topic_with_all_settings(calls: Calls, topic_name: str) -> None:
    answer = calls.create_topic(
        topic_name, partitions=2, replication=1, retention_ms=86_400_000, retention_bytes=1_000_000
    )
    assert answer.status_code == 201
    assert answer.json()["partitions"] == [0, 1]


def test_create_topic_twice(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    assert_failure(calls.create_topic(topic_name), 409, 40901, "topic already exists!")
    assert len(calls.partitions(topic_name).json()["partitions"]) == 1, "the first one stays as it was"


def test_create_topic_with_more_replicas_than_brokers(calls: Calls, topic_name: str) -> None:
    message = assert_failure(calls.create_topic(topic_name, replication=4), 400, 40001)
    assert "replication" in message
    assert_failure(calls.partitions(topic_name), 404, 40401, "topic not found", outcome=None)


# ---- GET /topics ----


def test_list_topics_of_a_new_stack(first_listing: requests.Response) -> None:
    assert_failure(first_listing, 404, 40405, "No topics found!", outcome=None)


def test_list_topics_is_sorted(calls: Calls, topic_name: str) -> None:
    names = [f"{topic_name}-b", f"{topic_name}-a", f"{topic_name}.C"]
    made = [calls.create_topic(name) for name in names]
    answer = calls.get("/topics", headers=token_of(made[-1]))
    assert answer.status_code == 200
    topics = answer.json()["topics"]
    assert answer.json() == {"status": "success", "topics": topics}
    assert topics == sorted(topics)
    assert set(names) <= set(topics)


# ---- GET /topics/{topic}/partitions ----


def test_list_partitions(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=2)
    producer = calls.producer(topic_name)
    for _ in range(3):
        calls.sent(topic_name, producer, "hello", partition_id=1)

    def spread() -> requests.Response | None:
        answer = calls.partitions(topic_name)
        assert answer.status_code == 200
        leaders = {partition["leader"] for partition in answer.json()["partitions"]} - {None}
        return answer if len(leaders) == 2 else None

    # As above: the first elections may not be over.
    body = until(spread, within_s=20, what="leaders are spread").json()
    first, second = body["partitions"]
    assert body == {"status": "success", "topic": topic_name, "partitions": [first, second]}
    for partition_id, partition, count in ((0, first, 0), (1, second, 3)):
        assert partition == {
            "partition_id": partition_id,
            "leader": partition["leader"],
            "replicas": partition["replicas"],
            "term": partition["term"],
            "beginning_offset": 0,
            "end_offset": count,
            "size": count,
            "size_bytes": partition["size_bytes"],
            "damaged": [],
            "voters": partition["voters"],
        }
        assert partition["leader"] in partition["replicas"]
        assert sorted(partition["replicas"]) == [1, 2, 3]
        assert partition["term"] >= 1
    assert first["leader"] != second["leader"], "leaders are spread"
    assert first["size_bytes"] == 0
    assert second["size_bytes"] > 0


def test_list_partitions_of_an_unknown_topic(calls: Calls) -> None:
    assert_failure(calls.partitions(UNKNOWN), 404, 40401, "topic not found", outcome=None)


# ---- POST /producer/register ----


def test_register_producer_makes_the_topic(calls: Calls, topic_name: str) -> None:
    answer = calls.register_producer(topic_name)
    assert answer.status_code == 201
    assert answer.json() == {"status": "success", "producer_id": answer.json()["producer_id"]}
    assert [p["partition_id"] for p in calls.partitions(topic_name).json()["partitions"]] == [0, 1, 2, 3]


def test_producer_ids_count_up(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    first = calls.producer(topic_name)
    assert [calls.producer(topic_name), calls.producer(topic_name)] == [first + 1, first + 2]


def test_producer_names(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    producer = calls.producer(topic_name, name="till 1 ☕")
    again = calls.register_producer(topic_name, name="till 1 ☕")
    assert (again.status_code, again.json()) == (200, {"status": "success", "producer_id": producer})
    assert calls.producer(topic_name, name="till 2") != producer
    elsewhere = calls.topic(f"{topic_name}-other")
    assert calls.producer(elsewhere, name="till 1 ☕") != producer, "a name belongs to its topic"


def test_a_producer_for_one_topic_and_no_other_of_its_name(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    described = calls.get(f"/v1/topics/{topic_name}").json()
    assert calls.producer(topic_name, topic_id=described["topic_id"]) >= 0
    deleted = requests.delete(f"{calls.url}/v1/topics/{topic_name}", timeout=10)
    gone = calls.register_producer(topic_name, topic_id=described["topic_id"])
    assert_failure(gone, 404, 40401, "topic not found")
    assert topic_name not in calls.get("/topics", token_of(deleted)).json()["topics"], "it was created"
    calls.topic(topic_name)
    replaced = calls.register_producer(topic_name, topic_id=described["topic_id"])
    assert "deleted and made again" in assert_failure(replaced, 404, 40401)
    bad = calls.register_producer(topic_name, topic_id="the first one")
    assert "topic_id" in assert_failure(bad, 400, 40001)


# ---- POST /consumer/register ----


def test_register_consumer(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    answer = calls.register_consumer(topic_name)
    assert answer.status_code == 201
    first = answer.json()["consumer_id"]
    assert answer.json() == {"status": "success", "consumer_id": first}
    assert calls.consumer(topic_name) == first + 1


def test_consumer_names(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=2)
    producer = calls.producer(topic_name)
    calls.sent(topic_name, producer, "before")
    whole = calls.consumer(topic_name, name="billing")
    again = calls.register_consumer(topic_name, name="billing", **{"from": "earliest"})
    assert (again.status_code, again.json()) == (200, {"status": "success", "consumer_id": whole})
    assert calls.drained(topic_name, whole) == [], "from is ignored the second time"
    assert_failure(calls.register_consumer(topic_name, name="billing", partition_id=1), 409, 40902)
    part = calls.consumer(topic_name, name="audit", partition_id=1)
    assert calls.register_consumer(topic_name, name="audit", partition_id=1).json()["consumer_id"] == part
    assert_failure(calls.register_consumer(topic_name, name="audit", partition_id=0), 409, 40902)
    assert_failure(calls.register_consumer(topic_name, name="audit"), 409, 40902)
    elsewhere = calls.topic(f"{topic_name}-other")
    assert calls.consumer(elsewhere, name="billing") != whole


def test_register_consumer_failures(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=2)
    assert_failure(calls.register_consumer(UNKNOWN), 404, 40401, "topic not found")
    answer = calls.register_consumer(topic_name, partition_id=2)
    assert_failure(answer, 404, 40402, "partition not found", details={"partition_id": 2})


def test_from_latest_and_earliest(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    producer = calls.producer(topic_name)
    calls.sent(topic_name, producer, "old")
    unsaid = calls.consumer(topic_name)
    latest = calls.consumer(topic_name, **{"from": "latest"})
    earliest = calls.consumer(topic_name, **{"from": "earliest"})
    calls.sent(topic_name, producer, "new")

    def read(consumer: int) -> list[str]:
        return [message["message"] for message in calls.drained(topic_name, consumer)]

    assert (read(unsaid), read(latest), read(earliest)) == (["new"], ["new"], ["old", "new"])


def test_from_offset(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=2)
    producer = calls.producer(topic_name)
    for number in range(3):
        calls.sent(topic_name, producer, str(number), partition_id=1)
    at_one = calls.consumer(topic_name, partition_id=1, **{"from": {"offset": 1}})
    assert [message["offset"] for message in calls.drained(topic_name, at_one)] == [1, 2]
    at_end = calls.consumer(topic_name, partition_id=1, **{"from": {"offset": 3}})
    assert calls.drained(topic_name, at_end) == []
    needs = assert_failure(calls.register_consumer(topic_name, **{"from": {"offset": 1}}), 400, 40001)
    assert "partition_id" in needs
    past = assert_failure(calls.register_consumer(topic_name, partition_id=1, **{"from": {"offset": 4}}), 400, 40001)
    assert "from" in past


def test_from_timestamp(calls: Calls, topic_name: str) -> None:
    def now_ms() -> int:
        return time.time_ns() // 1_000_000

    calls.topic(topic_name, partitions=2)
    producer = calls.producer(topic_name)
    for partition_id in (0, 1):
        calls.sent(topic_name, producer, "before", partition_id=partition_id)
    cut = now_ms() + 2
    until(lambda: now_ms() > cut, within_s=5, what="the clock goes on")
    for partition_id in (0, 1):
        calls.sent(topic_name, producer, "after", partition_id=partition_id)

    def count(timestamp: int) -> int:
        consumer = calls.consumer(topic_name, **{"from": {"timestamp": timestamp}})
        return int(calls.size(topic_name, consumer).json()["size"])

    assert count(0) == 4
    assert count(cut) == 2
    assert count(now_ms() + 3_600_000) == 0


# ---- POST /producer/produce ----


def test_produce(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=2)
    producer = calls.producer(topic_name)
    for offset in range(2):
        answer = calls.produce(topic_name, producer, "hello", partition_id=1)
        assert answer.status_code == 200
        assert answer.json() == {"status": "success", "partition_id": 1, "offset": offset}


def test_produce_failures_come_in_order(calls: Calls, topic_name: str) -> None:
    """Each request has this problem and all that come after it in the order of the API."""
    calls.topic(topic_name, partitions=2)
    elsewhere = calls.topic(f"{topic_name}-other")
    producer, stranger = calls.producer(topic_name), calls.producer(elsewhere)
    wrong: dict[str, Any] = {"partition_id": 7}
    assert_failure(calls.produce(UNKNOWN, UNKNOWN_ID, "x", **wrong), 404, 40401, "topic not found")
    assert_failure(calls.produce(topic_name, UNKNOWN_ID, "x", **wrong), 404, 40404, "Producer not found")
    assert_failure(calls.produce(topic_name, stranger, "x", **wrong), 404, 40404, "Producer not found")
    answer = calls.produce(topic_name, producer, "x", **wrong)
    assert_failure(answer, 404, 40402, "partition not found", details={"partition_id": 7})
    assert ends(calls, topic_name) == [0, 0]


def test_produce_round_robin(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=3)
    producer = calls.producer(topic_name)
    chosen = [calls.sent(topic_name, producer, "x")[0] for _ in range(6)]
    assert sorted(chosen[:3]) == [0, 1, 2]
    assert chosen[3:] == chosen[:3]


def test_a_key_always_goes_to_the_same_partition(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=3)
    producers = [calls.producer(topic_name), calls.producer(topic_name)]
    for key in ("customer-17", "customer-18", "ключ"):
        chosen = {calls.sent(topic_name, producer, "x", key=key)[0] for producer in producers for _ in range(3)}
        assert chosen == {partition_for(key.encode(), 3)}
    assert calls.sent(topic_name, producers[0], "x", key={"base64": "Y3VzdG9tZXItMTc="})[0] == partition_for(
        b"customer-17", 3
    )
    assert calls.sent(topic_name, producers[0], "x", key="customer-17", partition_id=1)[0] == 1, "said is said"


def test_message_and_key_in_all_forms(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    producer = calls.producer(topic_name)
    consumer = calls.consumer(topic_name)
    forms: list[tuple[object, object, object, object]] = [
        ("", None, "", None),
        ("text ☕ \x00 \n", "", "text ☕ \x00 \n", ""),
        ({"base64": "/wD+"}, {"base64": "gA=="}, {"base64": "/wD+"}, {"base64": "gA=="}),
        ({"base64": "dGV4dA=="}, {"base64": ""}, "text", ""),
    ]
    for message, key, _, _ in forms:
        calls.sent(topic_name, producer, message, key=key)
    read = [(message["message"], message["key"]) for message in calls.drained(topic_name, consumer)]
    assert read == [(message, key) for _, _, message, key in forms]


def test_produce_again_under_an_idempotency_key(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=3)
    producer, other = calls.producer(topic_name), calls.producer(topic_name)
    key = {"Idempotency-Key": "order 17"}
    first = calls.produce(topic_name, producer, "one", key)
    for _ in range(3):
        again = calls.produce(topic_name, producer, "one", key)
        assert (again.status_code, again.json()) == (200, first.json())
    assert_failure(
        calls.produce(topic_name, producer, "two", key),
        409,
        40903,
        "Idempotency-Key was used before with another message",
    )
    assert sum(ends(calls, topic_name)) == 1, "once in the log, and the other message not at all"
    calls.produce(topic_name, other, "two", key)
    assert sum(ends(calls, topic_name)) == 2, "another producer's key is another key"


def test_idempotency_keys_out_of_bounds(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    for key in ("", "k" * 201):
        header = {"Idempotency-Key": key}
        assert "Idempotency-Key" in assert_failure(calls.produce(topic_name, producer, "x", header), 400, 40001)
        assert_failure(calls.consume(topic_name, consumer, header), 400, 40001, outcome=None)
    assert calls.produce(topic_name, producer, "x", {"Idempotency-Key": "k" * 200}).status_code == 200
    assert ends(calls, topic_name) == [1]
