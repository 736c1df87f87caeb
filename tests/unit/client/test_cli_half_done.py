"""Commands of several steps, when a later one fails: they say what is done."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from myqueue.cli.app import app
from tests.unit.client.scripted_server import Reply, ScriptedServer, Seen, failure

AWAY = Reply(503, failure(503, 50304, "no healthy manager can take the request"))


def myqueue(server: ScriptedServer, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--url", server.url, "--timeout", "0.3"])


def success(**body: Any) -> Reply:
    return Reply(200, {"status": "success", **body})


@pytest.fixture
def billing(server: ScriptedServer) -> ScriptedServer:
    """A consumer of three partitions, the last of which cannot be moved."""
    lag = {"cursor": 9, "end_offset": 9, "messages": 0, "bytes": 0, "seconds": 0.0, "member": None}
    parts = [{"partition_id": number, "beginning_offset": 0} | lag for number in range(3)]

    def answer(seen: Seen) -> Reply:
        if seen.path == "/v1/consumers":
            return success(consumers=[{"consumer_id": 7, "topic": "orders", "name": "billing", "partition_id": None}])
        if seen.path.endswith("/lag"):
            return success(messages=0, bytes=0, seconds=0.0, partitions=parts)
        if seen.path.endswith("/offsets"):
            return success(partitions=parts)
        if seen.body["partition_id"] == 2:
            return AWAY
        return success(cursors=[{"partition_id": seen.body["partition_id"], "offset": seen.body["to"]["offset"]}])

    server.answer = answer
    return server


def test_seek_tells_which_partitions_moved(billing: ScriptedServer) -> None:
    done = myqueue(billing, "consumer", "seek", "orders", "billing", "--to", "-4")
    assert (done.exit_code, done.stdout) == (3, "")
    assert (
        f"request: partition 2 of consumer 7, at {billing.url} (50304); partitions 0, 1 moved already, the others not"
        in done.stderr
    )
    done = myqueue(billing, "consumer", "seek", "orders", "billing", "--to", "-4", "-o", "json")
    assert json.loads(done.stderr)["moved"] == [{"partition": 0, "to": 5}, {"partition": 1, "to": 5}]


def test_a_topic_that_was_made_is_told_also_if_nobody_can_describe_it(server: ScriptedServer) -> None:
    made = Reply(201, {"status": "success", "partitions": [0, 1]})
    server.answer = lambda seen: made if seen.method == "POST" else AWAY
    done = myqueue(server, "topic", "create", "orders", "--partitions", "2")
    assert (done.exit_code, done.stdout) == (0, "topic orders: created, 2 partitions\n")
    assert (
        f"the rest cannot be told now: no healthy manager can take the request: topic 'orders', at {server.url} (50304)"
        in done.stderr
    )


def test_delete_asks_nobody_but_who_deletes(server: ScriptedServer) -> None:
    assert myqueue(server, "topic", "delete", "orders", "--yes").exit_code == 0
    assert [seen.method for seen in server.seen] == ["DELETE"]
