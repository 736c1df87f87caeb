"""Members of a consumer over the port: leases, poll, commit, seek, lag."""

import time
from typing import Any

import pytest
import requests

from tests.calls import Calls
from tests.waiting import until


class Member:
    def __init__(self, calls: Calls, consumer_id: int, name: str = "") -> None:
        self._calls = calls
        self._path = f"/v1/consumers/{consumer_id}"
        self.name = name
        self.leases: dict[int, dict[str, Any]] = {}

    def poll(self, **more: object) -> list[dict[str, Any]]:
        answer = self._calls.post(f"{self._path}/poll", {"member": self.name, **more})
        assert answer.status_code == 200, answer.text
        self.leases = {lease["partition_id"]: lease for lease in answer.json()["leases"]}
        messages: list[dict[str, Any]] = answer.json()["messages"]
        return messages

    def renew(self, released: list[int] | None = None) -> set[int]:
        self.poll(max_messages=0, released=released or [])
        return set(self.leases)

    def revoking(self) -> list[int]:
        return [partition for partition, lease in self.leases.items() if lease["revoking"]]

    def commit(self, offsets: dict[int, int], *, key: str | None = None, fenced: bool = True) -> requests.Response:
        wanted = [
            {"partition_id": p, "offset": offset}
            | ({"generation": self.leases[p]["generation"]} if fenced and p in self.leases else {})
            for p, offset in offsets.items()
        ]
        headers = {} if key is None else {"Idempotency-Key": key}
        return self._calls.post(f"{self._path}/commit", {"member": self.name, "offsets": wanted}, headers)

    def seek(self, to: object, partition_id: int | None = None) -> requests.Response:
        body = {"to": to} | ({} if partition_id is None else {"partition_id": partition_id})
        return self._calls.post(f"{self._path}/seek", body)

    def lag(self) -> dict[str, Any]:
        answer = self._calls.get(f"{self._path}/lag")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


def filled(calls: Calls, topic: str, partitions: int, each: int) -> int:
    """A topic with that many messages in each partition, and a consumer that starts at the first of them."""
    calls.topic(topic, partitions=partitions)
    for partition in range(partitions):
        messages = [{"value": f"{partition}/{number}", "partition": partition} for number in range(each)]
        assert calls.post(f"/v1/topics/{topic}/messages", {"messages": messages}).status_code == 200
    return calls.consumer(topic, **{"from": "earliest"})


def test_the_lag_tells_who_reads(calls: Calls, topic_name: str) -> None:
    member = Member(calls, filled(calls, topic_name, 1, 1), "m")
    member.poll(client_id="till-1", host="shop")
    member.poll(max_messages=0)
    (partition,) = member.lag()["partitions"]
    assert (partition["member"], partition["client_id"], partition["host"]) == ("m", "till-1", "shop")
    member.poll(leave=True)
    (partition,) = member.lag()["partitions"]
    assert (partition["member"], partition["client_id"], partition["host"]) == (None, None, None)
    for wrong in ({"client_id": "n" * 201}, {"client_id": ""}, {"client_id": "a\n"}, {"host": "h" * 256}):
        answer = calls.post(f"{member._path}/poll", {"member": "m", **wrong})
        assert (answer.status_code, next(iter(wrong)) in answer.json()["message"]) == (400, True), answer.text


def test_poll_commit_and_lag(calls: Calls, topic_name: str) -> None:
    member = Member(calls, filled(calls, topic_name, 2, 5))
    messages = member.poll()
    assert sorted(m["value"] for m in messages) == [f"{p}/{n}" for p in range(2) for n in range(5)]
    assert member.lag()["messages"] == 10, "reading moves no cursor"
    first = member.commit({0: 3, 1: 5}, key="once")
    assert first.status_code == 200, first.text
    assert first.json()["cursors"] == [{"partition_id": 0, "offset": 3}, {"partition_id": 1, "offset": 5}]
    assert member.commit({0: 3, 1: 5}, key="once").json() == first.json()
    lag = member.lag()
    assert lag["messages"] == 2
    assert [(p["cursor"], p["end_offset"], p["messages"], p["member"]) for p in lag["partitions"]] == [
        (3, 5, 2, ""),
        (5, 5, 0, ""),
    ]
    assert [m["value"] for m in member.poll()] == ["0/3", "0/4"]
    assert member.poll(positions=[{"partition_id": 0, "offset": 5}]) == []


def test_commits_that_are_refused_change_nothing(calls: Calls, topic_name: str) -> None:
    member = Member(calls, filled(calls, topic_name, 2, 5))
    member.poll()
    assert member.commit({0: 3}).status_code == 200
    member.renew()
    stale = member.commit({0: 2, 1: 4})
    assert (stale.status_code, stale.json()["error_code"]) == (409, 40907)
    assert stale.json()["details"] == {"partition_id": 0, "cursor": 3}
    beyond = member.commit({0: 4, 1: 6})
    assert (beyond.status_code, beyond.json()["error_code"]) == (422, 42201)
    assert member.commit({0: 3}).status_code == 200, "where the cursor is already"
    member.renew()
    assert member.commit({0: 4}, key="k").status_code == 200
    other = member.commit({0: 5}, key="k")
    assert (other.status_code, other.json()["error_code"]) == (409, 40903)
    member.renew()
    stranger = Member(calls, int(member.lag()["consumer_id"]), "stranger")
    theirs = stranger.commit({1: 1}, fenced=False)
    assert (theirs.status_code, theirs.json()["error_code"]) == (409, 40908)
    member.leases[1]["generation"] -= 1
    assert member.commit({1: 1}).json()["error_code"] == 40908
    assert [p["cursor"] for p in member.lag()["partitions"]] == [4, 0]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"offsets": []}, 400),
        ({"offsets": [{"partition_id": 0}]}, 400),
        ({"offsets": [{"partition_id": 0, "offset": -1}]}, 400),
        ({"offsets": [{"partition_id": 0, "offset": 0}, {"partition_id": 0, "offset": 0}]}, 400),
        ({"offsets": [{"partition_id": 9, "offset": 0}]}, 404),
    ],
)
def test_commits_that_make_no_sense(calls: Calls, topic_name: str, body: object, status: int) -> None:
    calls.topic(topic_name)
    consumer = calls.consumer(topic_name)
    assert calls.post(f"/v1/consumers/{consumer}/commit", body).status_code == status
    for unknown, code in (("999999", 40403), ("9" * 19, 40403), ("x", 40001), ("9" * 5000, 40001)):
        answer = calls.post(f"/v1/consumers/{unknown}/commit", {"offsets": [{"partition_id": 0, "offset": 0}]})
        assert answer.json()["error_code"] == code, answer.text


def test_seek_goes_anywhere_and_ends_what_was_read_before(calls: Calls, topic_name: str) -> None:
    member = Member(calls, filled(calls, topic_name, 2, 5))
    member.poll()
    assert member.commit({0: 5, 1: 5}).status_code == 200
    sought = member.seek({"offset": 2}, partition_id=0)
    assert sought.status_code == 200, sought.text
    [cursor] = sought.json()["cursors"]
    assert (cursor["partition_id"], cursor["offset"]) == (0, 2)
    assert cursor["generation"] > member.leases[0]["generation"]
    assert member.commit({0: 5}).json()["error_code"] == 40908, "read before the seek"
    assert [m["value"] for m in member.poll()] == ["0/2", "0/3", "0/4"]
    assert [c["offset"] for c in member.seek("latest").json()["cursors"]] == [5, 5]
    assert [c["offset"] for c in member.seek("earliest").json()["cursors"]] == [0, 0]
    assert [c["offset"] for c in member.seek({"timestamp": 0}).json()["cursors"]] == [0, 0]
    far = int(time.time() * 1000) + 3_600_000
    assert [c["offset"] for c in member.seek({"timestamp": far}).json()["cursors"]] == [5, 5]
    assert member.seek({"offset": 6}, partition_id=0).json()["error_code"] == 42201
    for bad, partition in (({"offset": 1}, None), ("sideways", None), ({}, 0)):
        assert member.seek(bad, partition).status_code == 400
    assert member.seek("latest", partition_id=7).status_code == 404


def test_members_split_the_partitions(calls: Calls, topic_name: str) -> None:
    consumer = filled(calls, topic_name, 4, 3)
    a, b = Member(calls, consumer, "a"), Member(calls, consumer, "b")
    assert a.renew() == {0, 1, 2, 3}
    assert b.renew() == set()
    a.renew()
    revoked = a.revoking()
    assert len(revoked) == 2
    assert b.poll() == [], "not before they are let go"
    assert {m["partition_id"] for m in a.poll()} == {0, 1, 2, 3} - set(revoked), "no more of what is to be let go"
    assert a.commit(dict.fromkeys(revoked, 2)).status_code == 200, "still the holder's to commit"
    assert a.renew(released=revoked) == {0, 1, 2, 3} - set(revoked)
    assert {(m["partition_id"], m["offset"]) for m in b.poll()} == {(p, 2) for p in revoked}
    assert {p["partition_id"]: p["member"] for p in b.lag()["partitions"]} == {
        p: "b" if p in revoked else "a" for p in range(4)
    }
    b.poll(leave=True)
    assert a.renew() == {0, 1, 2, 3}


def test_the_partitions_of_a_dead_member_move(calls: Calls, topic_name: str) -> None:
    consumer = filled(calls, topic_name, 2, 1)
    dead, alive = Member(calls, consumer, "dead"), Member(calls, consumer, "alive")
    assert dead.renew() == {0, 1}
    until(lambda: alive.renew() == {0, 1}, within_s=8, what="its partitions are leased to the living")
    late = dead.commit({0: 1})
    assert (late.status_code, late.json()["error_code"]) == (409, 40908)


def test_simple_consume_leaves_leased_partitions_alone(calls: Calls, topic_name: str) -> None:
    consumer = filled(calls, topic_name, 1, 3)
    member = Member(calls, consumer)
    assert calls.consume(topic_name, consumer).json()["message"] == "0/0"
    assert [m["value"] for m in member.poll()] == ["0/1", "0/2"]
    assert calls.consume(topic_name, consumer).status_code == 204
    assert calls.consume(topic_name, consumer, partition_id=0).status_code == 204
    assert member.commit({0: 2}).status_code == 200
    member.poll(leave=True)
    assert calls.consume(topic_name, consumer).json()["message"] == "0/2"


def test_a_deleted_consumer_is_gone_and_its_name_is_free(calls: Calls, topic_name: str) -> None:
    gone = filled(calls, topic_name, 1, 3)
    kept = calls.consumer(topic_name, name="kept")
    member = Member(calls, gone)
    member.poll()
    assert member.commit({0: 2}).status_code == 200
    path = f"/v1/consumers/{gone}"
    deleted = requests.delete(calls.url + path, timeout=15)
    assert (deleted.status_code, deleted.json()["status"]) == (200, "success"), deleted.text
    token = {"X-Myqueue-Token": deleted.headers["X-Myqueue-Token"]}
    for answer in (
        requests.delete(calls.url + path, timeout=15),
        calls.get(path, token),
        calls.get(f"{path}/lag"),
        calls.post(f"{path}/poll", {}),
        calls.post(f"{path}/seek", {"to": "earliest"}),
        calls.post(f"{path}/commit", {"offsets": [{"partition_id": 0, "offset": 3}]}),
        calls.consume(topic_name, gone),
        calls.size(topic_name, gone),
    ):
        assert (answer.status_code, answer.json()["error_code"]) == (404, 40403), answer.text
    listed = calls.get("/v1/consumers", token, topic=topic_name).json()["consumers"]
    assert [entry["consumer_id"] for entry in listed] == [kept]
    assert requests.delete(f"{calls.url}/v1/consumers/{kept}", timeout=15).status_code == 200
    again = calls.consumer(topic_name, name="kept")
    assert again > kept
    for unknown, code in (("999999", 40403), ("9" * 19, 40403), ("x", 40001)):
        answer = requests.delete(f"{calls.url}/v1/consumers/{unknown}", timeout=15)
        assert answer.json()["error_code"] == code, answer.text
