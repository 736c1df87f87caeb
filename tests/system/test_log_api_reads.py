"""The reading half of the log API, and the data plane, through the one port."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
import requests

from myqueue.protocol import batch as wire
from myqueue.protocol import http_headers
from myqueue.protocol.batch import Message
from myqueue.protocol.limits import MAX_WAIT_MS
from tests.calls import Calls, assert_failure, token_of
from tests.cluster import Cluster
from tests.waiting import let_pass, throughout, until

ARROW = {"Accept": http_headers.ARROW_TYPE}
UNKNOWN_ID = 2_000_000_000


def messages_of(calls: Calls, topic: str, partition_id: int = 0, **query: int | str) -> requests.Response:
    return calls.get(f"/v1/topics/{topic}/partitions/{partition_id}/messages", None, **query)


def filled(calls: Calls, topic: str, count: int, partitions: int = 1) -> int:
    """A topic with messages "0", "1", … in partition 0; the producer that sent them."""
    calls.topic(topic, partitions)
    producer = calls.producer(topic)
    for number in range(count):
        calls.sent(topic, producer, str(number), key=f"key {number}", partition_id=0)
    return producer


class Later:
    """A request that is under way while the test goes on."""

    def __init__(self, method: str, url: str, **more: Any) -> None:
        self._answers: list[tuple[requests.Response, float]] = []
        self._thread = threading.Thread(target=self._ask, args=(method, url), kwargs=more)
        self._thread.start()

    def _ask(self, method: str, url: str, **more: Any) -> None:
        answer = requests.request(method, url, timeout=40, **more)
        self._answers.append((answer, time.monotonic()))

    @property
    def answered(self) -> bool:
        return bool(self._answers)

    def answer(self) -> requests.Response:
        self._thread.join(40)
        return self._answers[0][0]


# ---- messages ----


def test_messages_by_offset(calls: Calls, topic_name: str) -> None:
    before = time.time_ns() // 1_000_000
    producer = filled(calls, topic_name, 5)
    body = messages_of(calls, topic_name, offset=0).json()
    assert (body["status"], body["next_offset"], body["beginning_offset"], body["end_offset"]) == ("success", 5, 0, 5)
    assert [(m["offset"], m["value"], m["key"]) for m in body["messages"]] == [
        (n, str(n), f"key {n}") for n in range(5)
    ]
    first = body["messages"][0]
    assert (first["partition_id"], first["headers"], first["producer_id"]) == (0, [], producer)
    assert before <= first["timestamp"] <= first["append_time"] + 1000
    some = messages_of(calls, topic_name, offset=2, limit=2).json()
    assert ([m["value"] for m in some["messages"]], some["next_offset"]) == (["2", "3"], 4)
    few = messages_of(calls, topic_name, offset=1, max_bytes=14).json()
    assert [m["value"] for m in few["messages"]] == ["1", "2"], "6 bytes each"
    assert [m["value"] for m in messages_of(calls, topic_name, offset=3, max_bytes=1).json()["messages"]] == ["3"]
    again = messages_of(calls, topic_name, offset=0, limit=1).json()
    assert again["messages"] == body["messages"][:1], "reading changes nothing"


def test_messages_at_the_end(calls: Calls, topic_name: str) -> None:
    filled(calls, topic_name, 1)
    for offset in (1, 99):
        answer = messages_of(calls, topic_name, offset=offset)
        assert answer.status_code == 200
        assert (answer.json()["messages"], answer.json()["next_offset"], answer.json()["end_offset"]) == ([], offset, 1)


def test_messages_by_time(calls: Calls, topic_name: str) -> None:
    producer = filled(calls, topic_name, 2)
    last = messages_of(calls, topic_name, offset=1).json()["messages"][0]["append_time"]
    until(lambda: time.time_ns() // 1_000_000 > last + 20, within_s=5, what="the clock moved on")
    calls.sent(topic_name, producer, "late")
    late = messages_of(calls, topic_name, timestamp=last + 1).json()
    assert ([m["value"] for m in late["messages"]], late["next_offset"]) == (["late"], 3)
    assert len(messages_of(calls, topic_name, timestamp=0).json()["messages"]) == 3
    future = messages_of(calls, topic_name, timestamp=last + 10**9).json()
    assert (future["messages"], future["next_offset"]) == ([], 3)
    offsets = calls.get(f"/v1/topics/{topic_name}/partitions/0/offsets", timestamp=last + 1).json()
    assert offsets == {"status": "success", "beginning_offset": 0, "end_offset": 3, "offset": 2}
    plain = calls.get(f"/v1/topics/{topic_name}/partitions/0/offsets").json()
    assert plain == {"status": "success", "beginning_offset": 0, "end_offset": 3}


def test_offsets_of_a_whole_topic(calls: Calls, topic_name: str) -> None:
    """Of one topic: one that was deleted and made anew under the same name never shows offsets of the other."""
    path = f"/v1/topics/{topic_name}/offsets"
    assert_failure(calls.get(path), 404, 40401, "topic not found", outcome=None)
    ids = set()
    for count in (2, 0):
        made = requests.put(f"{calls.url}/v1/topics/{topic_name}", json={"partitions": 2}, timeout=15)
        token = token_of(made)
        producer = calls.producer(topic_name)
        for _ in range(count):
            calls.sent(topic_name, producer, "x", partition_id=1)
        ends = [{"partition_id": p, "beginning_offset": 0, "end_offset": end} for p, end in ((0, 0), (1, count))]
        whole = {"status": "success", "topic": topic_name, "topic_id": made.json()["topic_id"], "partitions": ends}
        found = [calls.get(path, token).json() for _ in range(2)]  # both read managers
        for answer in found:
            stored = [partition.pop("stored_bytes") for partition in answer["partitions"]]
            assert [size > 0 for size in stored] == [False, count > 0]
        assert found == [whole, whole]
        ids.add(whole["topic_id"])
        assert "colour" in assert_failure(calls.get(path, colour="red"), 400, 40001, outcome=None)
        requests.delete(f"{calls.url}/v1/topics/{topic_name}", timeout=15)
    assert len(ids) == 2


def test_messages_as_arrow(calls: Calls, topic_name: str) -> None:
    filled(calls, topic_name, 3)
    url = f"/v1/topics/{topic_name}/partitions/0/messages"
    answer = calls.get(url, ARROW, offset=1)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, http_headers.ARROW_TYPE)
    assert answer.headers[http_headers.END_OFFSET] == "3"
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.column("offset").to_pylist() == [1, 2]
    assert table.column("value").to_pylist() == [b"1", b"2"]
    assert table.column("key").to_pylist() == [b"key 1", b"key 2"]
    empty = calls.get(url, ARROW, offset=3)
    assert (empty.status_code, empty.content) == (204, b"")


def test_messages_wait_for_the_next_one(calls: Calls, topic_name: str) -> None:
    producer = filled(calls, topic_name, 1)
    url = f"{calls.url}/v1/topics/{topic_name}/partitions/0/messages"
    waiting = [Later("GET", url, params={"offset": "1", "wait_ms": "20000"}, headers=given) for given in ({}, ARROW)]
    throughout(lambda: not any(later.answered for later in waiting), for_s=0.5, what="both wait")
    calls.sent(topic_name, producer, "at last")
    json_answer, arrow_answer = (later.answer() for later in waiting)
    assert [m["value"] for m in json_answer.json()["messages"]] == ["at last"]
    assert pa.ipc.open_stream(arrow_answer.content).read_all().column("value").to_pylist() == [b"at last"]
    began_s = time.monotonic()
    assert messages_of(calls, topic_name, offset=2, wait_ms=300).json()["messages"] == []
    assert 0.3 <= time.monotonic() - began_s < 5


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"offset": 0, "timestamp": 0},
        {"offset": -1},
        {"offset": "x"},
        {"offset": 0, "limit": 0},
        {"offset": 0, "limit": 10_001},
        {"offset": 0, "max_bytes": 0},
        {"offset": 0, "wait_ms": -1},
        {"offset": 0, "more": 1},
    ],
)
def test_messages_refuses(calls: Calls, query: dict[str, object]) -> None:
    answer = calls.get("/v1/topics/whatever/partitions/0/messages", None, **query)
    assert_failure(answer, 400, 40001, outcome=None)


def test_messages_of_what_is_not_there(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    assert_failure(messages_of(calls, "no-such-topic", offset=0), 404, 40401, "topic not found", outcome=None)
    assert_failure(messages_of(calls, topic_name, 1, offset=0), 404, 40402, "partition not found", outcome=None)
    assert_failure(calls.get(f"/v1/topics/{topic_name}/partitions/x/offsets"), 400, 40001, outcome=None)
    assert_failure(calls.get(f"/v1/topics/{topic_name}/partitions/9/offsets"), 404, 40402, outcome=None)
    assert_failure(calls.get(f"/v1/topics/{topic_name}/partitions/{1 << 40}/offsets"), 404, 40402, outcome=None)


def test_what_retention_has_cut(calls: Calls, topic_name: str) -> None:
    assert calls.create_topic(topic_name, partitions=1, retention_bytes=100_000).status_code == 201
    consumer = calls.consumer(topic_name, **{"from": "earliest"})
    for _ in range(10):
        sent = {"messages": [{"value": "x" * 10_000, "partition": 0} for _ in range(4)]}
        assert calls.post(f"/v1/topics/{topic_name}/messages", sent).status_code == 200
    offsets = f"/v1/topics/{topic_name}/partitions/0/offsets"
    seen: dict[int, float] = {}

    def settled() -> int | None:
        """A leader looks every second whether there is something to cut."""
        beginning: int = calls.get(offsets).json()["beginning_offset"]
        rests = time.monotonic() - seen.setdefault(beginning, time.monotonic()) > 2.2
        return beginning if rests else None

    beginning = until(settled, within_s=20, what="the log was cut")
    below = {"beginning_offset": beginning}
    assert_failure(messages_of(calls, topic_name, offset=0), 410, 41001, outcome=None, details=below)
    routing, grant = routed(calls, topic_name)
    fetched = calls.get(f"{routing['partitions'][0]['path']}/batches", grant, offset=0)
    assert_failure(fetched, 410, 41001, outcome=None, details=below)
    assert messages_of(calls, topic_name, timestamp=0, limit=1).json()["messages"][0]["offset"] == beginning
    polled = calls.post(f"/v1/consumers/{consumer}/poll", {"max_messages": 3}).json()
    assert [m["offset"] for m in polled["messages"]] == [beginning, beginning + 1, beginning + 2]
    assert calls.get(f"/v1/consumers/{consumer}/lag").json()["messages"] == 40 - beginning


def test_many_that_wait_do_not_slow_other_reads(calls: Calls, topic_name: str) -> None:
    """300 waiting requests are far more than a read manager has threads."""
    producer = filled(calls, topic_name, 1, partitions=3)
    consumers = [calls.consumer(topic_name, partition_id=1) for _ in range(10)]
    waiting_urls = [
        f"{calls.url}/v1/topics/{topic_name}/partitions/2/messages?offset=0&wait_ms={MAX_WAIT_MS}" for _ in range(150)
    ] + [
        f"{calls.url}/consumer/consume?topic={topic_name}&consumer_id={consumer}&wait_ms={MAX_WAIT_MS}"
        for consumer in consumers
        for _ in range(15)
    ]
    with ThreadPoolExecutor(len(waiting_urls)) as pool:
        answers = [pool.submit(requests.get, url, timeout=40) for url in waiting_urls]
        throughout(lambda: not any(answer.done() for answer in answers), for_s=2, what="all of them wait")
        began_s = time.monotonic()
        for _ in range(20):
            assert messages_of(calls, topic_name, offset=0).status_code == 200
            assert calls.get("/topics").status_code == 200
        assert time.monotonic() - began_s < 20, "a request each 500 ms, with 300 others waiting"
        calls.sent(topic_name, producer, "for the readers", partition_id=2)
        for number in range(15):
            calls.sent(topic_name, producer, f"for the consumers {number}", partition_id=1)
        found = [answer.result() for answer in answers]
    assert {answer.status_code for answer in found} == {200}
    assert all(answer.json()["messages"][0]["value"] == "for the readers" for answer in found[:150])
    claimed = [(answer.url, answer.json()["offset"]) for answer in found[150:]]
    assert len(set(claimed)) == 150, "every consumer gave each message to one of its 15"


def test_a_poll_waits_and_keeps_its_leases(calls: Calls, topic_name: str) -> None:
    producer = filled(calls, topic_name, 1, partitions=2)
    consumer = calls.consumer(topic_name)
    url = f"{calls.url}/v1/consumers/{consumer}/poll"
    waiting = Later("POST", url, json={"member": "a", "wait_ms": 20_000})
    throughout(lambda: not waiting.answered, for_s=3.5, what="it waits for longer than a lease lasts")
    members = [p["member"] for p in calls.get(f"/v1/consumers/{consumer}/lag").json()["partitions"]]
    assert members == ["a", "a"], "it was renewed all the while"
    calls.sent(topic_name, producer, "at last", partition_id=1)
    [message] = waiting.answer().json()["messages"]
    assert (message["partition_id"], message["value"]) == (1, "at last")

    waiting_again = Later(
        "POST", url, json={"member": "a", "wait_ms": 20_000, "positions": [{"partition_id": 1, "offset": 1}]}
    )
    throughout(lambda: not waiting_again.answered, for_s=0.3, what="it waits")
    calls.post(f"/v1/consumers/{consumer}/poll", {"member": "b", "max_messages": 0})
    answer = waiting_again.answer().json()
    assert answer["messages"] == []
    assert sorted(lease["revoking"] for lease in answer["leases"]) == [False, True], "a change of leases ends the wait"
    for member in ("a", "b"):
        left = calls.post(f"/v1/consumers/{consumer}/poll", {"member": member, "leave": True})
        assert left.json()["leases"] == []


def test_a_client_that_hangs_up_takes_no_message_along(calls: Calls, topic_name: str) -> None:
    """A message goes to a request that is still connected, and leases do not outlive the member that waits."""
    producer = filled(calls, topic_name, 0)
    consumer, shared = calls.consumer(topic_name), calls.consumer(topic_name)
    query = {"topic": topic_name, "consumer_id": str(consumer), "wait_ms": "20000"}
    for _ in range(2):  # at both read managers
        with pytest.raises(requests.Timeout):
            requests.get(f"{calls.url}/consumer/consume", query, timeout=0.5)
    poll = {"member": "gone", "wait_ms": 20_000}
    with pytest.raises(requests.Timeout):
        requests.post(f"{calls.url}/v1/consumers/{shared}/poll", json=poll, timeout=0.5)
    hung_up_s = time.monotonic()
    calls.sent(topic_name, producer, "not lost")
    let_pass(0.5)  # a request that the message wakes has claimed it by now
    assert calls.consume(topic_name, consumer).json()["message"] == "not lost"
    until(
        lambda: calls.get(f"/v1/consumers/{shared}/lag").json()["partitions"][0]["member"] is None,
        within_s=6,
        what="the lease ended",
    )
    assert time.monotonic() - hung_up_s < 8


# ---- topics, consumers, cluster ----


def test_describe_topic(calls: Calls, topic_name: str) -> None:
    calls.create_topic(topic_name, partitions=3, retention_ms=86_400_000)
    body = calls.get(f"/v1/topics/{topic_name}").json()
    assert body == {
        "status": "success",
        "topic": topic_name,
        "topic_id": body["topic_id"],
        "partitions": 3,
        "replication": 3,
        "retention_ms": 86_400_000,
        "retention_bytes": None,
    }
    assert UUID(body["topic_id"])
    assert_failure(calls.get("/v1/topics/no-such-topic"), 404, 40401, "topic not found", outcome=None)


def test_describe_consumer_and_lag(calls: Calls, topic_name: str) -> None:
    producer = filled(calls, topic_name, 3, partitions=2)
    consumer = calls.consumer(topic_name, name="billing", **{"from": "earliest"})
    described = calls.get(f"/v1/consumers/{consumer}").json()
    assert described == {
        "status": "success",
        "consumer_id": consumer,
        "topic": topic_name,
        "name": "billing",
        "partition_id": None,
    }
    calls.sent(topic_name, producer, "x", partition_id=1)
    calls.consume(topic_name, consumer, partition_id=0)
    lag = calls.get(f"/v1/consumers/{consumer}/lag").json()
    assert (lag["consumer_id"], lag["topic"], lag["messages"]) == (consumer, topic_name, 3)
    shown = [(p["partition_id"], p["cursor"], p["end_offset"], p["messages"], p["member"]) for p in lag["partitions"]]
    assert shown == [(0, 1, 3, 2, None), (1, 0, 1, 1, None)]
    assert lag["bytes"] == sum(p["bytes"] for p in lag["partitions"]) > 0
    assert lag["seconds"] == max(p["seconds"] for p in lag["partitions"]) > 0
    calls.drained(topic_name, consumer)
    done = calls.get(f"/v1/consumers/{consumer}/lag").json()
    assert (done["messages"], done["bytes"], done["seconds"]) == (0, 0, 0.0)
    for path in ("", "/lag"):
        assert_failure(calls.get(f"/v1/consumers/{UNKNOWN_ID}{path}"), 404, 40403, outcome=None)
        assert_failure(calls.get(f"/v1/consumers/{1 << 40}{path}"), 404, 40403, outcome=None)
        assert_failure(calls.get(f"/v1/consumers/me{path}"), 400, 40001, outcome=None)


def test_cluster(stack: Cluster, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, 3)
    answer = calls.get("/v1/cluster")
    body = answer.json()
    assert [(b["broker_id"], b["state"]) for b in body["brokers"]] == [(n, "active") for n in (1, 2, 3)]
    assert [(m["name"], m["state"]) for m in body["read_managers"]] == [(f"read-manager-{n}", "active") for n in (1, 2)]
    assert body["write_manager"]["name"] == stack.active_write_manager()
    assert body["write_manager"]["epoch"] >= 1
    assert body["topics"] >= 1
    assert body["partitions"] >= 3
    assert sum(b["holds"] for b in body["brokers"]) >= 9
    assert "127.0.0.1" not in answer.text


# ---- routing and the data plane ----


def routed(calls: Calls, topic: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The routing, and the header with its grant."""
    answer = calls.get(f"/v1/routing/{topic}")
    assert answer.status_code == 200, answer.text
    assert "127.0.0.1" not in answer.text, "no address leaves the cluster"
    return answer.json(), {http_headers.GRANT: answer.json()["grant"]}


def test_routing(calls: Calls, topic_name: str) -> None:
    created = calls.create_topic(topic_name, partitions=2)
    answer = calls.get(f"/v1/routing/{topic_name}", token_of(created))
    body = answer.json()
    assert (body["topic"], len(body["partitions"])) == (topic_name, 2)
    for number, partition in enumerate(body["partitions"]):
        assert sorted(partition["replicas"]) == [1, 2, 3]
        assert partition["path"] == (f"/v1/brokers/{partition['leader']}/topics/{body['topic_id']}/partitions/{number}")
    assert 30_000 < body["expires_at"] - time.time_ns() // 1_000_000 <= 60_000
    assert_failure(calls.get("/v1/routing/no-such-topic"), 404, 40401, "topic not found", outcome=None)


def test_batches_through_the_port(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    routing, grant = routed(calls, topic_name)
    topic_id, path = UUID(routing["topic_id"]), routing["partitions"][0]["path"]
    url = f"{calls.url}{path}/batches"
    batch_type = {"Content-Type": http_headers.BATCH_TYPE, **grant}
    sent = [Message(b"x" * 1000 + str(n).encode(), b"key", timestamp=n) for n in range(1000)]
    data = wire.encode(topic_id, 0, sent)
    for base in (0, 1000):
        answer = requests.post(url, data=data, headers=batch_type, timeout=10)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert (body["base_offset"], body["count"], body["duplicate"]) == (base, 1000, False)
    fetched = requests.get(url, params={"offset": 1500, "max_bytes": 1}, headers=grant, timeout=10)
    assert (fetched.status_code, fetched.headers[http_headers.END_OFFSET]) == (200, "2000")
    [(header, rows)] = wire.batches_in(fetched.content)
    assert (header.base_offset, header.count) == (1000, 1000)
    assert wire.messages_of(wire.decode_body(rows)) == sent
    both = requests.get(url, params={"offset": 0, "max_bytes": 4 << 20}, headers=grant, timeout=10)
    assert [header.base_offset for header, _ in wire.batches_in(both.content)] == [0, 1000]
    listed = messages_of(calls, topic_name, offset=999, limit=2, max_bytes=4 << 20).json()
    assert [(m["offset"], m["timestamp"], m["producer_id"]) for m in listed["messages"]] == [
        (999, 999, None),
        (1000, 0, None),
    ]
    waiting = Later("GET", url, params={"offset": "2000", "wait_ms": "20000"}, headers=grant)
    throughout(lambda: not waiting.answered, for_s=0.3, what="it waits")
    requests.post(url, data=data, headers=batch_type, timeout=10)
    assert [header.base_offset for header, _ in wire.batches_in(waiting.answer().content)] == [2000]
    over = requests.get(url, params={"offset": 3000}, headers=grant, timeout=10)
    assert (over.status_code, over.content, over.headers[http_headers.END_OFFSET]) == (204, b"", "3000")


def test_the_data_plane_refuses(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    other = calls.topic(f"{topic_name}-other")
    routing, grant = routed(calls, topic_name)
    _, other_grant = routed(calls, other)
    partition = routing["partitions"][0]
    path = f"{partition['path']}/batches"
    data = wire.encode(UUID(routing["topic_id"]), 0, [Message(b"x")])

    def post(to: str, grant: dict[str, str], body: bytes = data) -> requests.Response:
        given = {"Content-Type": http_headers.BATCH_TYPE, **grant}
        return requests.post(calls.url + to, data=body, headers=given, timeout=10)

    assert_failure(post(path, {}), 401, 40102, retriable=True)
    assert_failure(post(path, {http_headers.GRANT: "AAAA"}), 401, 40102, retriable=True)
    assert_failure(post(path, other_grant), 403, 40301)
    assert_failure(post(path, grant, data[:-1]), 400, 40001)
    assert_failure(post(path, grant, b"x" * ((4 << 20) + (64 << 10) + 1)), 413, 41301)
    follower = next(n for n in partition["replicas"] if n != partition["leader"])
    elsewhere = path.replace(f"/brokers/{partition['leader']}/", f"/brokers/{follower}/")
    assert_failure(post(elsewhere, grant), 421, 42101, retriable=True, details={"leader": partition["leader"]})
    nowhere = path.replace(f"/brokers/{partition['leader']}/", "/brokers/99/")
    assert_failure(post(nowhere, grant), 404, 40406)
    assert_failure(calls.get("/v1/brokers/1/internal/topics"), 404, 40400, outcome=None)
    assert calls.get(elsewhere, grant, offset=0).status_code == 204, "every replica answers; nothing was stored"
    assert messages_of(calls, topic_name, offset=0).json()["end_offset"] == 0
