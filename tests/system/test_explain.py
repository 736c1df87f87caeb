"""Why a consumer gets nothing, as the running system says it: the call, the library, the command."""

import json

import requests
from typer.testing import CliRunner

from myqueue import Admin
from myqueue.cli.app import app
from tests.calls import Calls, assert_failure


def explained(calls: Calls, consumer_id: int) -> dict[str, str]:
    answer = calls.get(f"/v1/consumers/{consumer_id}/explain")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["consumer_id"] == consumer_id
    summary: dict[str, str] = body["summary"]
    assert summary["text"]
    assert summary["action"]
    assert summary["reason"] in {partition["reason"] for partition in body["partitions"]}
    return summary


def test_reasons_come_and_go(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, 2)
    producer = calls.producer(topic_name)
    consumer = calls.register_consumer(topic_name, name="reader").json()["consumer_id"]
    assert explained(calls, consumer)["reason"] == "topic_empty"
    calls.sent(topic_name, producer, "one", partition_id=0)
    assert explained(calls, consumer)["reason"] == "messages_waiting"
    poll = {"member": "m-1", "client_id": "shop", "host": "host-a", "max_messages": 0}
    assert requests.post(f"{calls.url}/v1/consumers/{consumer}/poll", json=poll, timeout=15).status_code == 200
    held = explained(calls, consumer)
    assert held["reason"] == "held_by_member"
    assert "client id shop, host host-a" in held["text"]
    requests.post(f"{calls.url}/v1/consumers/{consumer}/poll", json={"member": "m-1", "leave": True}, timeout=15)
    assert calls.consume(topic_name, consumer).status_code == 200
    assert explained(calls, consumer)["reason"] in ("at_end", "claims_in_flight")


def test_the_library_and_the_command(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    calls.register_consumer(topic_name, name="reader")
    with Admin(calls.url) as admin:
        found = admin.explain("reader", topic_name)
    assert (found.reason, found.partitions[0].reason, found.topic) == ("topic_empty", "topic_empty", topic_name)
    for options in ([], ["-o", "json"]):
        shown = CliRunner().invoke(app, ["--url", calls.url, *options, "consumer", "explain", topic_name, "reader"])
        assert shown.exit_code == 0, shown.output
        assert "topic_empty" in shown.output
    document = json.loads(shown.stdout)
    assert (document["reason"], document["partition_list"][0]["action"]) == (found.reason, found.action)


def test_a_consumer_that_does_not_exist(calls: Calls) -> None:
    assert_failure(calls.get("/v1/consumers/2000000000/explain"), 404, 40403, outcome=None)
