"""Lines of JSON through the one port, in and out."""

import json

import requests

from tests.calls import Calls, assert_failure

LINES = {"Accept": "application/x-ndjson"}


def post_lines(calls: Calls, topic: str, body: bytes) -> requests.Response:
    url = f"{calls.url}/v1/topics/{topic}/messages"
    return requests.post(url, data=body, headers={"Content-Type": "application/x-ndjson"}, timeout=15)


def test_lines_in_and_out(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    made = post_lines(calls, topic_name, b'{"value": "one", "key": "k"}\n{"value": {"base64": "/w=="}, "key": "k"}\n')
    assert (made.status_code, [line["offset"] for line in made.json()["offsets"]]) == (200, [0, 1])
    path = f"/v1/topics/{topic_name}/partitions/0/messages"
    read = calls.get(path, LINES, offset=0)
    assert (read.headers["Content-Type"], read.headers["X-Myqueue-End-Offset"]) == ("application/x-ndjson", "2")
    listed = calls.get(path, offset=0).json()["messages"]
    assert [json.loads(line) for line in read.content.splitlines()] == listed
    assert calls.get(path, LINES, offset=2).status_code == 204


def test_nothing_of_a_refused_request_is_stored(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    refused = post_lines(calls, topic_name, b'{"value": "one"}\n{"value": "two", "key": 5}\n')
    assert assert_failure(refused, 400, 40001).startswith("line 2: key")
    assert calls.get(f"/v1/topics/{topic_name}/partitions/0/offsets").json()["end_offset"] == 0


def test_a_poll_in_lines(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    consumer = calls.register_consumer(topic_name, **{"from": "earliest"}).json()["consumer_id"]
    assert post_lines(calls, topic_name, b'{"value": "one"}\n{"value": "two"}').status_code == 200
    polled = calls.post(f"/v1/consumers/{consumer}/poll", {"member": "m", "wait_ms": 5000}, LINES)
    assert polled.headers["Content-Type"] == "application/x-ndjson"
    first, *messages = [json.loads(line) for line in polled.content.splitlines()]
    assert [lease["partition_id"] for lease in first["leases"]] == [0]
    assert "messages" not in first
    assert [message["value"] for message in messages] == ["one", "two"]
