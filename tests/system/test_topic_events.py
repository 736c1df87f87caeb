"""Event streams of topics through the one port: where they start, how they go on, and how they end."""

import asyncio
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from tests.calls import Calls, assert_failure
from tests.cluster import READ_MANAGERS, Cluster
from tests.event_client import EventClient, StreamEnded
from tests.waiting import until

STREAMS = 1000
RETRIABLE = (b"HTTP/1.1 502 ", b"HTTP/1.1 503 ", b"HTTP/1.1 504 ")


def events(calls: Calls, topic: str, *, resume: str | None = None, **query: object) -> EventClient:
    return EventClient(calls.url, f"/v1/topics/{topic}/events", resume=resume, **query)


def sent(calls: Calls, topic: str, *values: str, partition_id: int = 0) -> None:
    messages = [{"value": value, "partition_id": partition_id} for value in values]
    assert calls.post(f"/v1/topics/{topic}/messages", {"messages": messages}).status_code == 200


def test_messages_come_as_they_are_listed(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, 2)
    messages = [
        {"value": "line\nbreak <b>é</b>", "key": "k", "headers": [{"key": "h", "value": "v"}], "partition_id": 0},
        {"value": {"base64": "/wA="}, "partition_id": 0},
    ]
    assert calls.post(f"/v1/topics/{topic_name}/messages", {"messages": messages}).status_code == 200
    with events(calls, topic_name, from_="earliest").start() as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["cache-control"] == "no-store"
        assert stream.retry_ms == 1000
        found = stream.take(2)
        sent(calls, topic_name, "live", partition_id=1)
        live = stream.next()
    listed = calls.get(f"/v1/topics/{topic_name}/partitions/0/messages", offset=0).json()["messages"]
    assert [event.data for event in found] == listed
    assert {event.kind for event in (*found, live)} == {"message"}
    assert (live.data["value"], live.data["partition_id"]) == ("live", 1)
    tag = calls.get(f"/v1/topics/{topic_name}").json()["topic_id"].replace("-", "")[:16]
    assert [event.event_id for event in (*found, live)] == [f"1-{tag}-0-{ends}" for ends in ("1.0", "2.0", "2.1")]


def test_where_a_stream_starts(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    sent(calls, topic_name, "old")
    listed = calls.get(f"/v1/topics/{topic_name}/partitions/0/messages", offset=0).json()["messages"]
    after = listed[0]["append_time"] + 1
    until(lambda: time.time_ns() // 1_000_000 > after, what="the clock has moved on")
    sent(calls, topic_name, "new")
    with events(calls, topic_name).start() as latest, events(calls, topic_name, from_="latest").start() as also:
        sent(calls, topic_name, "last")
        assert (latest.next().data["value"], also.next().data["value"]) == ("last", "last")
    for query, first in (
        ({"from_": "earliest"}, "old"),
        ({"from_": 0}, "old"),
        ({"from_": after}, "new"),
        ({"last": "1h"}, "old"),
        ({"from_": "earliest", "partition_id": 0}, "old"),
    ):
        with events(calls, topic_name, **query).start() as stream:
            assert stream.next().data["value"] == first, query


def test_a_stream_goes_on_where_the_last_one_ended(calls: Calls, topic_name: str) -> None:
    """By the header of an EventSource and by a query, also after a stream that had no message yet."""
    calls.topic(topic_name, 3)
    with events(calls, topic_name).start() as empty:
        at = empty.last_event_id
    for n in range(30):
        sent(calls, topic_name, str(n), partition_id=n % 3)
    seen = []
    for n in range(30):
        by_query = {"last_event_id": at} if n % 2 else {}
        by_header = None if n % 2 else at
        with events(calls, topic_name, resume=by_header, from_="earliest", **by_query).start() as stream:
            event = stream.next()
            at = event.event_id
            seen.append(event.data["value"])
    assert sorted(map(int, seen)) == list(range(30)), "none is missing, none comes twice"
    with events(calls, topic_name, resume=at, partition_id=1).start() as one:
        sent(calls, topic_name, "elsewhere", partition_id=0)
        sent(calls, topic_name, "here", partition_id=1)
        assert one.next().data["value"] == "here"


def test_a_consumers_cursor_moves_when_the_client_says_so(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, 2)
    consumer = calls.register_consumer(topic_name, name="reader é", **{"from": "earliest"}).json()["consumer_id"]
    for n in range(4):
        sent(calls, topic_name, str(n), partition_id=n % 2)
    with events(calls, topic_name, consumer="reader é").start() as stream:
        first, second, *_ = stream.take(4)
    assert calls.size(topic_name, consumer).json()["size"] == 4, "reading moves nothing"
    path = f"/v1/consumers/{consumer}/commit"
    for _ in range(2):  # again is fine
        committed = calls.post(path, {"event_id": second.event_id})
        assert committed.status_code == 200, committed.text
        assert calls.size(topic_name, consumer).json()["size"] == 2
    with events(calls, topic_name, consumer="reader é").start() as again:
        left = {event.data["value"] for event in again.take(2)}
    assert left == {"0", "1", "2", "3"} - {first.data["value"], second.data["value"]}
    back = calls.post(path, {"event_id": first.event_id})
    assert_failure(back, 409, 40907, details=back.json()["details"])
    assert_failure(calls.post(path, {"event_id": "1-0000000000000000-0-0.0"}), 410, 41002)
    assert_failure(calls.post(path, {"event_id": "x"}), 400, 40001)
    assert_failure(calls.post(path, {}), 400, 40001)
    missing = requests.get(f"{calls.url}/v1/topics/{topic_name}/events?consumer=nobody", timeout=10)
    assert "POST /consumer/register" in assert_failure(missing, 404, 40403, outcome=None)


def test_bad_requests_are_refused_before_the_stream_begins(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, 2)
    with events(calls, topic_name).start() as stream:
        event_id = stream.last_event_id
    tag = event_id.split("-")[1]
    for status, code, query, said in (
        (400, 40001, {"from": "yesterday"}, "from"),
        (400, 40001, {"from": "earliest", "last": "1h"}, "either from, last or consumer"),
        (400, 40001, {"offset": "0"}, "offset"),
        (404, 40402, {"partition_id": "2"}, "partition"),
        (400, 40001, {"last_event_id": "1-xyz"}, "event id"),
        (400, 40001, {"last_event_id": f"1-{tag}-1-0", "partition_id": "0"}, "did not read partition 0"),
        (410, 41002, {"last_event_id": "1-0123456789abcdef-0-0.0"}, "connect without it"),
        (422, 42201, {"last_event_id": f"1-{tag}-0-0.7"}, "ends at 0"),
    ):
        answer = calls.get(f"/v1/topics/{topic_name}/events", None, **query)
        assert said in assert_failure(answer, status, code, outcome=None, details=answer.json().get("details")), query
    assert_failure(calls.get(f"/v1/topics/{topic_name}-x/events"), 404, 40401, outcome=None)
    assert requests.head(f"{calls.url}/v1/topics/{topic_name}/events", timeout=10).status_code == 405


def test_what_retention_has_taken_is_named(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    with events(calls, topic_name).start() as stream:
        at = stream.last_event_id
    for _ in range(3):
        sent(calls, topic_name, "x" * 500_000, "y" * 500_000)
    requests.patch(f"{calls.url}/v1/topics/{topic_name}", json={"retention_bytes": 1_200_000}, timeout=10)

    def beginning() -> int:
        offsets = calls.get(f"/v1/topics/{topic_name}/partitions/0/offsets").json()
        return int(offsets["beginning_offset"])

    until(lambda: beginning() >= 2, within_s=20, what="retention has cut the log")
    with events(calls, topic_name, resume=at).start() as stream:
        gap, message = stream.take(2)
    assert gap.kind == "gap"
    skipped = gap.data["to_offset"]
    assert gap.data == {
        "partition_id": 0,
        "from_offset": 0,
        "to_offset": skipped,
        "messages": skipped,
        "reason": "retention",
    }
    assert gap.event_id.endswith(f"-0-{skipped}")
    assert (message.kind, message.data["offset"]) == ("message", skipped)


def test_a_stream_ends_with_its_topic(calls: Calls, topic_name: str) -> None:
    """Also when another one of its name is there at once: its messages are none of this stream."""
    calls.topic(topic_name)
    with events(calls, topic_name).start() as stream:
        assert requests.delete(f"{calls.url}/v1/topics/{topic_name}", timeout=10).status_code == 200
        calls.topic(topic_name)
        sent(calls, topic_name, "of another topic")
        end = stream.next(within_s=15)
        assert (end.kind, end.data) == ("end", {"topic": topic_name, "reason": "topic_deleted"})
        with pytest.raises(StreamEnded):
            stream.next()
        with events(calls, topic_name, resume=stream.last_event_id) as refused:
            assert (refused.status, refused.failure()["error_code"]) == (410, 41002)


def threads_of(stack: Cluster) -> int:
    total = 0
    for name in READ_MANAGERS:
        status = Path(f"/proc/{stack.pid(name)}/status").read_text()
        total += next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads:"))
    return total


@pytest.mark.timeout(120)
def test_a_thousand_streams(stack: Cluster, calls: Calls, topic_name: str) -> None:
    """One message reaches them all, and they cost no thread each."""
    calls.topic(topic_name)
    where = urlsplit(calls.url)
    before = threads_of(stack)

    async def opened() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A busy server may refuse some of so many at once, and says so: they come again."""
        while True:
            reader, writer = await asyncio.open_connection(where.hostname, where.port or 80)
            writer.write(f"GET /v1/topics/{topic_name}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"HTTP/1.1 200 "):
                return reader, writer
            assert head.startswith(RETRIABLE), head
            writer.close()
            await asyncio.sleep(0.2)

    async def one(begun: asyncio.Semaphore) -> None:
        reader, writer = await opened()
        try:
            await reader.readuntil(b"id: ")
            begun.release()
            await reader.readuntil(b"event: message\n")
            assert b'"value": "for all"' in await reader.readuntil(b"\n\n")
        finally:
            writer.close()

    async def play() -> int:
        begun = asyncio.Semaphore(0)
        async with asyncio.timeout(100), asyncio.TaskGroup() as clients:
            for _ in range(STREAMS):
                clients.create_task(one(begun))
            for _ in range(STREAMS):
                await begun.acquire()
            threads = await asyncio.to_thread(threads_of, stack)
            await asyncio.to_thread(sent, calls, topic_name, "for all")
        return threads

    assert asyncio.run(play()) < before + 50
