"""Who reads: the client id and the host of a member, from the library to the command line."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from myqueue import Consumer, RetryPolicy
from myqueue.cli.app import app
from myqueue.member_identity import default_client_id, new_member
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reply, ScriptedServer, Seen, failure

QUICK = RetryPolicy(deadline_s=2.0, first_pause_s=0.001, longest_pause_s=0.01)
POLL = "/v1/consumers/5/poll"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("/srv/app/billing.py", "billing-7"),
        ("billing", "billing-7"),
        ("/srv/app/orders/__main__.py", "orders-7"),
        ("-c", "python-7"),
        ("", "python-7"),
        ("/x/a\x07b\udc80.py", "ab-7"),
        ("/x/" + "n" * 300 + ".py", "n" * 198 + "-7"),
    ],
)
def test_the_default_is_the_script_and_the_process(script: str, expected: str) -> None:
    assert default_client_id(script, 7) == expected


@pytest.mark.parametrize("wrong", ["", "n" * 201, "a\nb"])
def test_a_client_id_that_the_cluster_would_refuse_is_refused_at_once(wrong: str) -> None:
    with pytest.raises(ValueError, match="1 to 200 printable characters"):
        new_member(wrong)
    with pytest.raises(TypeError, match="must be a str, not int"):
        new_member(5)  # type: ignore[arg-type]


def read_one(server: ScriptedServer, **settings: Any) -> None:
    with Consumer(server.url, topic="orders", name="billing", start="earliest", retry=QUICK, **settings) as consumer:
        assert consumer.poll(5) is not None


def test_every_poll_names_the_process(server: ScriptedServer) -> None:
    server.answer = cluster = MemoryCluster()
    cluster.put("one")
    read_one(server, client_id="till-3")
    polls = [seen.body for seen in server.calls(POLL) if not seen.body.get("leave")]
    assert {poll["client_id"] for poll in polls} == {"till-3"}
    assert all(poll["host"] for poll in polls)


def test_a_server_that_does_not_know_client_ids_is_polled_without(server: ScriptedServer) -> None:
    cluster = MemoryCluster()
    cluster.put("one")

    def older(seen: Seen) -> Reply:
        if seen.path == POLL and "client_id" in seen.body:
            return Reply(400, failure(400, 40001, "client_id: Extra inputs are not permitted"))
        return cluster(seen)

    server.answer = older
    read_one(server)
    assert "client_id" not in server.calls(POLL)[-1].body


def test_the_command_shows_who_reads(server: ScriptedServer) -> None:
    lag = {"cursor": 9, "end_offset": 9, "messages": 0, "bytes": 0, "seconds": 0.0}
    readers: list[dict[str, str | None]] = [
        {"member": "m0", "client_id": "till-1", "host": "shop"},
        {"member": "m1"},  # another program
        {"member": "m2", "client_id": "till-2", "host": None},
        {"member": None, "client_id": None, "host": None},
        {"member": "0123456789", "client_id": "twin", "host": "shop"},
        {"member": "abcdefghij", "client_id": "twin", "host": "shop"},
    ]

    def answer(seen: Seen) -> Reply:
        if seen.path == "/v1/consumers":
            found = {"consumer_id": 7, "topic": "orders", "name": "billing", "partition_id": None}
            return Reply(200, {"consumers": [found]})
        partitions = [{"partition_id": number} | lag | reader for number, reader in enumerate(readers)]
        return Reply(200, {"messages": 0, "bytes": 0, "seconds": 0.0, "partitions": partitions})

    server.answer = answer
    words = ["consumer", "lag", "orders", "billing", "--url", server.url]
    done = CliRunner().invoke(app, words)
    assert [line.split(maxsplit=7)[7] for line in done.stdout.splitlines()[1:]] == [
        "till-1@shop",
        "m1",
        "till-2",
        "-",
        "twin@shop (01234567)",
        "twin@shop (abcdefgh)",
    ]
    shown = json.loads(CliRunner().invoke(app, [*words, "-o", "json"]).stdout)["partition_list"]
    assert (shown[0]["client_id"], shown[0]["host"], shown[1]["client_id"]) == ("till-1", "shop", None)
