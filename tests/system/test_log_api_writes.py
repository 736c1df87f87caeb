"""Writes of the log API over the port: topics by PUT, messages as JSON and Arrow, producers with epochs."""

import uuid
from typing import Any

import pyarrow as pa
import pytest
import requests

from myqueue.protocol.partitioner import partition_for
from tests.calls import TIMEOUT_S, Calls
from tests.cluster import Cluster

ARROW = "application/vnd.apache.arrow.stream"


def put(calls: Calls, topic: str, body: object) -> requests.Response:
    return requests.put(f"{calls.url}/v1/topics/{topic}", json=body, timeout=TIMEOUT_S)


def post_messages(calls: Calls, topic: str, *messages: dict[str, Any], key: str | None = None) -> requests.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return calls.post(f"/v1/topics/{topic}/messages", {"messages": list(messages)}, headers)


def stored(calls: Calls, topic: str, partition: int) -> list[dict[str, Any]]:
    answer = calls.get(f"/v1/topics/{topic}/partitions/{partition}/messages", offset=0)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


def test_put_is_idempotent(calls: Calls, topic_name: str) -> None:
    settings = {"partitions": 2, "retention_ms": 60_000}
    made = put(calls, topic_name, settings)
    assert made.status_code == 201, made.text
    assert made.headers["X-Myqueue-Token"]
    again = put(calls, topic_name, settings)
    assert (again.status_code, again.json()) == (200, made.json())
    assert made.json() == {
        "status": "success",
        "topic": topic_name,
        "topic_id": made.json()["topic_id"],
        "partitions": 2,
        "replication": 3,
        "retention_ms": 60_000,
        "retention_bytes": None,
    }
    for other in ({"partitions": 3, "retention_ms": 60_000}, {"partitions": 2}, {**settings, "replication": 1}):
        refused = put(calls, topic_name, other)
        assert (refused.status_code, refused.json()["error_code"]) == (409, 40901)


@pytest.mark.parametrize("name", ["__inner", "a b", "x" * 201])
def test_put_and_producers_refuse_bad_names(calls: Calls, name: str) -> None:
    assert put(calls, name, {}).json()["error_code"] == 40001
    assert calls.post(f"/v1/topics/{name}/producers", {}).json()["error_code"] == 40001


def test_a_producer_gets_a_new_epoch_each_time(calls: Calls, topic_name: str) -> None:
    path = f"/v1/topics/{topic_name}/producers"
    first = calls.post(path, {"name": "shop"})
    assert first.status_code == 201, first.text
    assert first.json()["epoch"] == 0
    second = calls.post(path, {"name": "shop"})
    assert second.status_code == 200
    assert second.json() == {**first.json(), "epoch": 1}
    nameless = calls.post(path, {})
    assert nameless.status_code == 201
    assert nameless.json()["producer_id"] != first.json()["producer_id"]
    assert calls.register_producer(topic_name, name="shop").json()["producer_id"] == first.json()["producer_id"]


def test_messages_as_json(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=4)
    headers = [{"key": "trace", "value": "t-1"}, {"key": "raw", "value": {"base64": "/w=="}}, {"key": "none"}]
    answer = post_messages(
        calls,
        topic_name,
        {"value": "to key", "key": "k"},
        {"value": "to 2", "partition_id": 2, "timestamp": 1234, "headers": headers},
        {"value": {"base64": "AAE="}},
        {"value": "beside it"},
    )
    assert answer.status_code == 200, answer.text
    by_key, chosen, third, fourth = answer.json()["offsets"]
    assert by_key["partition_id"] == by_key["partition"] == partition_for(b"k", 4)
    assert chosen["partition_id"] == chosen["partition"] == 2
    assert third["partition_id"] == fourth["partition_id"], "what may go anywhere stays together"
    assert fourth["offset"] == third["offset"] + 1
    found = next(m for m in stored(calls, topic_name, 2) if m["offset"] == chosen["offset"])
    assert (found["value"], found["timestamp"], found["producer_id"]) == ("to 2", 1234, None)
    assert found["headers"] == [*headers[:2], {"key": "none", "value": None}]


@pytest.mark.parametrize("name", ["partition_id", "partition"])
def test_messages_as_arrow(calls: Calls, topic_name: str, name: str) -> None:
    calls.topic(topic_name, partitions=2)
    table = pa.table(
        {
            "value": pa.array(["a", "b", "c"], pa.string()),
            name: pa.array([1, 1, 0], pa.int64()),
            "key": pa.array([b"k", None, None], pa.large_binary()),
        }
    )
    sent = requests.post(
        f"{calls.url}/v1/topics/{topic_name}/messages",
        data=arrow_stream(table, "zstd"),
        headers={"Content-Type": ARROW},
        timeout=TIMEOUT_S,
    )
    assert sent.status_code == 200, sent.text
    assert [line["partition_id"] for line in sent.json()["offsets"]] == [1, 1, 0]
    assert [(m["key"], m["value"]) for m in stored(calls, topic_name, 1)] == [("k", "a"), (None, "b")]


def arrow_stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_a_key_makes_posting_repeatable_and_tells_mixed_answers_apart(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=3)
    key = uuid.uuid4().hex
    messages = [{"value": f"m{number}"} for number in range(6)]
    first = post_messages(calls, topic_name, *messages, key=key)
    again = post_messages(calls, topic_name, *messages, key=key)
    assert first.status_code == again.status_code == 200
    assert again.json() == first.json()
    changed = [{"value": "other"}, *messages[1:]]
    mixed = post_messages(calls, topic_name, *changed, key=key)
    assert mixed.status_code == 207
    refused, *rest = mixed.json()["offsets"]
    assert (refused["error_code"], refused["retriable"], refused["outcome"]) == (40903, False, "not_written")
    assert rest == first.json()["offsets"][1:]
    alone = post_messages(calls, topic_name, {"value": "other"}, key=key)
    assert (alone.status_code, alone.json()["error_code"]) == (409, 40903)
    assert sum(len(stored(calls, topic_name, p)) for p in range(3)) == 6


def test_many_messages_at_once_keep_their_order(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=2)
    answer = post_messages(calls, topic_name, *({"value": f"{n:04d}" * 10, "partition": 1} for n in range(3000)))
    assert answer.status_code == 200, answer.text
    assert [line["offset"] for line in answer.json()["offsets"]] == list(range(3000))


@pytest.mark.parametrize(
    ("body", "status", "what"),
    [
        (b'{"messages":[]}', 400, "messages"),
        (b'{"messages":[{"value":1}]}', 400, "messages.0.value"),
        (b'{"messages":[{"value":"x","offset":3}]}', 400, "unknown field"),
        (b'{"messages":[{"value":"x"}],"topic":"t"}', 400, "unknown field"),
        (b'{"messages":[{"value":"x","headers":[{"value":"y"}]}]}', 400, "headers"),
        (b'{"messages":[{"value":"x","timestamp":-1}]}', 400, "timestamp"),
        (b'{"messages":[{"value":"x","partition":7}]}', 404, "partition not found"),
        (b'{"messages":[{"value":"x","partition_id":7}]}', 404, "partition not found"),
        (b'{"messages":[{"value":"x"},{"value":"x","partition":0,"partition_id":0}]}', 400, "messages.1: partition is"),
        (b'{"messages":[{"value":"first"},{"value":"' + b"x" * ((1 << 20) + 1) + b'"}]}', 413, "message"),
        (b'{"messages":[{"value":"x","key":"' + b"x" * ((1 << 16) + 1) + b'"}]}', 413, "key"),
        (b'{"messages":[' + b",".join([b'{"value":""}'] * 10_001) + b"]}", 400, "messages"),
        (b"not json", 400, "JSON"),
    ],
)
def test_bad_json_writes_nothing(calls: Calls, topic_name: str, body: bytes, status: int, what: str) -> None:
    calls.topic(topic_name)
    url = f"{calls.url}/v1/topics/{topic_name}/messages"
    answer = requests.post(url, data=body, headers={"Content-Type": "application/json"}, timeout=TIMEOUT_S)
    assert answer.status_code == status, answer.text
    assert what in answer.json()["message"]
    assert answer.json()["outcome"] == "not_written"
    assert stored(calls, topic_name, 0) == []


BAD_ARROW = {
    "no value": arrow_stream(pa.table({"key": [b"k"]})),
    "unknown column": arrow_stream(pa.table({"value": [b"v"], "offset": [1]})),
    "null value": arrow_stream(pa.table({"value": pa.array([b"v", None])})),
    "wrong type": arrow_stream(pa.table({"value": [1.5]})),
    "dictionary": arrow_stream(pa.table({"value": pa.array(["v"]).dictionary_encode()})),
    "negative partition": arrow_stream(pa.table({"value": [b"v"], "partition": [-1]})),
    "negative partition_id": arrow_stream(pa.table({"value": [b"v"], "partition_id": [-1]})),
    "both names of a partition": arrow_stream(pa.table({"value": [b"v"], "partition_id": [0], "partition": [0]})),
    "no rows": arrow_stream(pa.table({"value": pa.array([], pa.binary())})),
    "cut off": arrow_stream(pa.table({"value": [b"v" * 500]}))[:-300],
    "nonsense": b"nonsense",
    "empty": b"",
}


@pytest.mark.parametrize("kind", BAD_ARROW)
def test_bad_arrow_writes_nothing(calls: Calls, topic_name: str, kind: str) -> None:
    calls.topic(topic_name)
    url = f"{calls.url}/v1/topics/{topic_name}/messages"
    answer = requests.post(url, data=BAD_ARROW[kind], headers={"Content-Type": ARROW}, timeout=TIMEOUT_S)
    assert (answer.status_code, answer.json()["error_code"]) == (400, 40001), answer.text
    assert stored(calls, topic_name, 0) == []


def test_what_would_grow_too_large_is_not_decompressed(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    bomb = arrow_stream(pa.table({"value": [bytes(1 << 20)] * 40}), "zstd")
    assert len(bomb) < 1 << 20
    url = f"{calls.url}/v1/topics/{topic_name}/messages"
    answer = requests.post(url, data=bomb, headers={"Content-Type": ARROW}, timeout=TIMEOUT_S)
    assert (answer.status_code, answer.json()["error_code"]) == (413, 41301), answer.text


def test_other_types_keys_and_topics_are_refused(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    url = f"{calls.url}/v1/topics/{topic_name}/messages"
    for headers in ({"Content-Type": "text/plain"}, {"Content-Type": "application/json", "Content-Encoding": "gzip"}):
        answer = requests.post(url, data=b"{}", headers=headers, timeout=TIMEOUT_S)
        assert (answer.status_code, answer.json()["error_code"]) == (415, 41501)
    assert post_messages(calls, topic_name, {"value": "x"}, key="k" * 201).status_code == 400
    assert post_messages(calls, "nowhere", {"value": "x"}).json()["message"] == "topic not found"


def test_the_load_balancer_can_ask_for_data_addresses(stack: Cluster) -> None:
    url = f"{stack.internal_url}/internal/brokers"
    assert requests.get(url, timeout=TIMEOUT_S).status_code == 401
    answer = requests.get(url, headers={"X-Myqueue-Secret": stack.secret}, timeout=TIMEOUT_S).json()
    assert [broker["broker_id"] for broker in answer["brokers"]] == [1, 2, 3]
    assert all(broker["data_address"].startswith("127.0.0.1:") for broker in answer["brokers"])
