"""What jobs found: results count once, and the figures are there for everybody at the port."""

import time
from typing import Any

import pytest
import requests

from tests.calls import Calls, assert_failure, token_of
from tests.jobs import MINUTE_MS, Inside, Run, this_minute


@pytest.fixture
def topic(calls: Calls, topic_name: str) -> dict[str, Any]:
    """Name and id, as measures want them."""
    calls.topic(topic_name, partitions=2)
    topic_id = calls.get(f"/v1/topics/{topic_name}").json()["topic_id"]
    return {"topic": topic_name, "topic_id": topic_id}


def read(topic: dict[str, Any], start: int, end: int, size: int, **more: object) -> dict[str, Any]:
    """What was newly read of partition 0."""
    measure = {
        "partition_id": 0,
        "from_offset": start,
        "to_offset": end,
        "messages": end - start,
        "payload_bytes": size,
    }
    return {**topic, **measure, "beginning_offset": 0, "end_offset": end, **more}


def test_figures_of_a_partition(calls: Calls, run: Run, job: str, topic: dict[str, Any]) -> None:
    assert run.partitions(topic["topic"]) == [], "nothing was computed yet"
    empty = {**topic, "partition_id": 1, "beginning_offset": 0, "end_offset": 0}
    first = read(topic, 0, 100, 5000, first_timestamp=7, last_timestamp=9)
    assert run.taken(query_id="q", batch_id=0, partitions=[first, empty]) == {
        "status": "success",
        "applied": True,
        "skipped": 0,
    }
    one, other = run.partitions(topic["topic"], history=5)
    first_at = one["computed_at"]
    figures = {"messages": 100, "payload_bytes": 5000, "bytes": 5000, "stored_bytes": None, "first_offset": 0}
    figures |= {"end_offset": 100, "rate_per_minute": None, "rate_in_per_minute": None, "rate_out_per_minute": None}
    figures["computed_at"] = first_at
    assert abs(first_at - time.time() * 1000) < 60_000
    assert one == {
        "topic": topic["topic"],
        "partition_id": 0,
        **figures,
        "bytes_exact": True,
        "log_end_offset": 100,
        "first_timestamp": 7,
        "last_timestamp": 9,
        "gaps": 0,
        "duplicates": 0,
        "job": job,
        "history": [figures],
    }
    assert (other["partition_id"], other["messages"], other["log_end_offset"]) == (1, 0, 0)
    run.taken(query_id="q", batch_id=1, partitions=[read(topic, 100, 150, 500, end_offset=160)])
    one, _ = run.partitions(topic["topic"], history=1000)
    assert (one["messages"], one["bytes"], one["end_offset"], one["log_end_offset"]) == (150, 5500, 150, 160)
    assert one["rate_per_minute"] > 0
    assert [past["messages"] for past in one["history"]] == [150, 100]
    run.taken(query_id="q", partitions=[{**topic, "partition_id": 0, "beginning_offset": 0, "end_offset": 160}])
    one, _ = run.partitions(topic["topic"])
    assert (one["messages"], one["rate_per_minute"], one["history"]) == (150, 0, [])
    one, _ = run.partitions(topic["topic"], history=5)
    assert [past["messages"] for past in one["history"]] == [150, 150, 100], "a point of every run"


def test_a_batch_counts_once(run: Run, topic: dict[str, Any]) -> None:
    minute = this_minute()

    def post(batch_id: int, part: int, start: int, query_id: str = "q") -> bool:
        found = run.taken(
            query_id=query_id,
            batch_id=batch_id,
            part=part,
            partitions=[read(topic, start, start + 10, 100)],
            topics=[{**topic, "minute": minute, "messages": 10, "bytes": 100}],
        )
        return bool(found["applied"])

    def known() -> tuple[int, int, int, int]:
        partition, counted = run.partitions(topic["topic"])[0], run.minutes(topic["topic"])[0]
        assert counted["minute"] == minute
        return partition["messages"], partition["bytes"], counted["messages"], counted["bytes"]

    assert post(5, 0, 0)
    assert post(5, 1, 10)
    assert known() == (20, 200, 20, 200)
    for batch_id, part in ((5, 1), (5, 0), (4, 7)):
        assert not post(batch_id, part, 20)
    assert known() == (20, 200, 20, 200)
    assert post(6, 0, 20)
    assert known() == (30, 300, 30, 300)
    assert post(0, 0, 0, "began anew"), "batches of another query are other batches"
    assert known() == (10, 100, 10, 100), "and what the one before had added up is gone"
    assert post(0, 1, 10, "began anew")
    assert known() == (20, 200, 20, 200), "later parts belong to the query that took over"


def test_a_query_with_a_checkpoint_of_its_own_is_refused(run: Run, topic: dict[str, Any]) -> None:
    run.taken(query_id="q", batch_id=7, partitions=[read(topic, 0, 10, 100)])
    before = run.partitions(topic["topic"], history=9)
    for batch_id, part in ((8, 0), (1, 0), (0, 1)):
        answer = run.results(query_id="x", batch_id=batch_id, part=part, partitions=[read(topic, 10, 20, 100)])
        message = assert_failure(answer, 409, 40912, details={"query_id": "q", "batch_id": 7})
        assert "MYQUEUE_SPARK_DIR" in message
    assert run.partitions(topic["topic"], history=9) == before
    now = {**topic, "partition_id": 0, "beginning_offset": 0, "end_offset": 17}
    assert run.taken(query_id="x", partitions=[now])["applied"], "any run may report what the brokers say"
    [one] = run.partitions(topic["topic"])
    assert (one["messages"], one["bytes"], one["log_end_offset"]) == (10, 100, 17)
    run.taken(query_id="q", batch_id=8, partitions=[read(topic, 10, 20, 100)])
    [one] = run.partitions(topic["topic"])
    assert (one["messages"], one["bytes"], one["gaps"]) == (20, 200, 0)


def test_a_query_that_began_anew_drops_only_its_own_job(
    calls: Calls, inside: Inside, run: Run, topic: dict[str, Any]
) -> None:
    other = Run(calls, inside, run.begun["job"] + "_2")
    run.taken(query_id="q", batch_id=0, partitions=[read(topic, 0, 10, 100)])
    other.taken(query_id="q", batch_id=0, partitions=[read(topic, 0, 10, 100, partition_id=1)])
    run.taken(query_id="anew", batch_id=0, partitions=[])
    assert [entry["partition_id"] for entry in run.partitions(topic["topic"])] == [1]


def test_retention_and_audits(run: Run, topic: dict[str, Any]) -> None:
    run.taken(query_id="q", batch_id=0, partitions=[read(topic, 0, 100, 1000)])
    kept = {"beginning_offset": 50, "end_offset": 100}
    run.taken(query_id="q", partitions=[{**topic, "partition_id": 0, **kept}])
    [one] = run.partitions(topic["topic"])
    assert (one["first_offset"], one["messages"], one["bytes"], one["bytes_exact"]) == (50, 50, 500, False)
    minute = {**topic, "minute": this_minute(), "messages": 3, "bytes": 30}
    run.taken(replace=True, partitions=[read(topic, 50, 100, 777, **kept)], topics=[minute])
    run.taken(replace=True, topics=[minute])
    [one] = run.partitions(topic["topic"])
    assert (one["messages"], one["bytes"], one["bytes_exact"]) == (50, 777, True)
    assert [entry["messages"] for entry in run.minutes(topic["topic"])] == [3]
    assert run.taken(query_id="q", batch_id=1, partitions=[read(topic, 101, 110, 9, gaps=2, messages=7)])["applied"]
    [one] = run.partitions(topic["topic"])
    assert (one["messages"], one["bytes"], one["gaps"]) == (60, 786, 3)


def test_minutes_of_a_topic(run: Run, topic: dict[str, Any]) -> None:
    now = this_minute()
    minutes = [now, now - 5 * MINUTE_MS, now - 90 * MINUTE_MS]
    untimely = [now - 8 * 24 * 60 * MINUTE_MS, now + 25 * 60 * MINUTE_MS]  # one that a wrong clock made ends no job
    given = [*minutes, *untimely]
    taken = run.taken(
        query_id="q",
        batch_id=0,
        topics=[{**topic, "minute": minute, "messages": n, "bytes": 10 * n} for n, minute in enumerate(given)],
    )
    assert (taken["applied"], taken["skipped"]) == (True, 2)
    listed = run.minutes(topic["topic"], minutes=10_080)
    expected = [(minute, n, 10 * n) for n, minute in enumerate(minutes)]
    assert [(entry["minute"], entry["messages"], entry["bytes"]) for entry in listed] == expected
    assert run.minutes(topic["topic"]) == listed[:2], "an hour, if nothing else is said"


def test_consumers_and_their_lag(calls: Calls, run: Run, topic: dict[str, Any]) -> None:
    name = topic["topic"]
    named, made = calls.consumer(name, name="billing"), calls.register_consumer(name, partition_id=1)
    whole, token = made.json()["consumer_id"], token_of(made)
    listed = calls.get("/v1/consumers", token, topic=name).json()
    assert listed == {
        "status": "success",
        "consumers": [
            {"consumer_id": named, "topic": name, "name": "billing", "partition_id": None},
            {"consumer_id": whole, "topic": name, "name": None, "partition_id": 1},
        ],
        "next": None,
    }
    first = calls.get("/v1/consumers", token, topic=name, limit=1).json()
    assert (first["consumers"], first["next"]) == (listed["consumers"][:1], named)
    last = calls.get("/v1/consumers", token, topic=name, limit=1, after=first["next"]).json()
    assert (last["consumers"], last["next"]) == (listed["consumers"][1:], None)
    everybody = [entry["consumer_id"] for entry in calls.get("/v1/consumers", token).json()["consumers"]]
    assert everybody == sorted(everybody)
    assert {named, whole} <= set(everybody)

    def lag(consumer_id: int, partition_id: int, messages: int) -> dict[str, Any]:
        place = {"consumer_id": consumer_id, "topic": name, "partition_id": partition_id}
        return {**place, "cursor": 5, "end_offset": 5 + messages, "messages": messages, "bytes": 9, "seconds": 1.5}

    assert run.lags(topic=name) == []
    run.taken(consumers=[lag(named, 0, 3), lag(named, 1, 4)])
    gone = [lag(whole, 0, 1), lag(named, 2, 1), lag(2_000_000_000, 0, 1)]
    for _ in range(2):
        assert run.taken(consumers=[lag(named, 0, 2), lag(whole, 1, 1), *gone])["skipped"] == 3
    found = run.lags(topic=name, history=10)
    places = [(entry["consumer_id"], entry["name"], entry["partition_id"], entry["messages"]) for entry in found]
    assert places == [(named, "billing", 0, 2), (named, "billing", 1, 4), (whole, None, 1, 1)]
    assert [past["messages"] for past in found[0]["history"]] == [2, 2, 3], "a point of every run"
    assert found[0]["seconds"] == 1.5
    assert [entry["consumer_id"] for entry in run.lags(consumer_id=whole)] == [whole]
    page = calls.get("/v1/stats/consumers", run.token, topic=name, limit=1).json()
    assert ([entry["consumer_id"] for entry in page["consumers"]], page["next"]) == ([named, named], named)
    page = calls.get("/v1/stats/consumers", run.token, topic=name, limit=1, after=named).json()
    assert ([entry["consumer_id"] for entry in page["consumers"]], page["next"]) == ([whole], None)


def test_figures_go_with_their_topic(calls: Calls, run: Run, topic: dict[str, Any]) -> None:
    name = topic["topic"]
    consumer = calls.consumer(name)
    lag = {"consumer_id": consumer, "topic": name, "partition_id": 0, "cursor": 0, "end_offset": 0}
    body = {
        "partitions": [read(topic, 0, 10, 100), read(topic, 0, 10, 100, partition_id=2)],
        "topics": [{**topic, "minute": this_minute(), "messages": 1, "bytes": 1}],
        "consumers": [{**lag, "messages": 0, "bytes": 0, "seconds": 0}],
    }
    assert run.taken(query_id="q", batch_id=0, **body)["skipped"] == 1, "there is no partition 2"
    deleted = requests.delete(f"{calls.url}/v1/topics/{name}", timeout=15)
    token = token_of(deleted)
    for what in ("partitions", "topics", "consumers"):
        assert_failure(calls.get(f"/v1/stats/{what}", token, topic=name), 404, 40401, "topic not found", outcome=None)
    assert_failure(calls.get("/v1/consumers", token, topic=name), 404, 40401, "topic not found", outcome=None)
    gone = calls.get("/v1/stats/consumers", token, consumer_id=consumer)
    assert_failure(gone, 404, 40403, "Consumer not found", outcome=None)
    assert name not in calls.get("/v1/stats/partitions", token).text
    calls.topic(name, partitions=2)
    assert run.taken(query_id="q", batch_id=1, **body)["skipped"] == 4, "it is another topic now"
    assert run.partitions(name) == []


def test_a_large_post(run: Run, topic: dict[str, Any]) -> None:
    """A week of minutes, within the time that the database is given."""
    now = this_minute()
    minutes = [{**topic, "minute": now - n * MINUTE_MS, "messages": 1, "bytes": 1} for n in range(10_000)]
    assert run.taken(query_id="q", batch_id=0, topics=minutes)["skipped"] == 0
    assert len(run.minutes(topic["topic"], minutes=10_080)) == 10_000


def test_results_to_refuse(run: Run, topic: dict[str, Any]) -> None:
    good, minute = read(topic, 0, 10, 100), {**topic, "minute": this_minute(), "messages": 1, "bytes": 1}
    lag = {"consumer_id": 0, "topic": topic["topic"], "partition_id": 0, "cursor": 0, "end_offset": 0}
    lag |= {"messages": 0, "bytes": 0, "seconds": 0}
    batch = {"query_id": "q", "batch_id": 0}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"partitions": [good]}, "batch_id"),
        ({"topics": [minute]}, "batch_id"),
        ({"batch_id": 0}, "query_id"),
        ({**batch, "replace": True}, "replace"),
        ({**batch, "batch_id": -1}, "batch_id"),
        ({**batch, "part": "0"}, "part"),
        ({**batch, "query_id": ""}, "query_id"),
        ({**batch, "colour": "red"}, "colour"),
        ({**batch, "partitions": None}, "partitions"),
        ({**batch, "partitions": [good, good]}, "partitions.1"),
        ({**batch, "topics": [minute, minute]}, "topics.1"),
        ({**batch, "consumers": [lag, lag]}, "consumers.1"),
        ({**batch, "topics": [{**minute, "minute": minute["minute"] + 1}]}, "minute"),
        ({**batch, "topics": [{**minute, "topic_id": "x"}]}, "topic_id"),
        ({**batch, "consumers": [{**lag, "seconds": -1}]}, "seconds"),
        ({**batch, "consumers": [{**lag, "seconds": None}]}, "seconds"),
    ]
    wrong_measures: list[tuple[dict[str, Any], str]] = [
        ({"to_offset": None}, "from_offset"),
        ({"from_offset": None, "to_offset": None}, "from_offset"),
        ({"from_offset": 10}, "to_offset"),
        ({"messages": 11}, "messages"),
        ({"beginning_offset": 11}, "beginning_offset"),
        ({"bytes": -1}, "bytes"),
        ({"topic": "../x"}, "topic"),
        ({"partition_id": True}, "partition_id"),
        ({"end_offset": None}, "end_offset"),
    ]
    refused += [({**batch, "partitions": [{**good, **wrong}]}, field) for wrong, field in wrong_measures]
    for body, field in refused:
        message = assert_failure(run.results(**body), 400, 40001)
        assert field in message, (field, message)
    assert run.partitions(topic["topic"]) == []


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        ("/v1/stats/runs", {"limit": 0}, "limit"),
        ("/v1/stats/runs", {"limit": 1001}, "limit"),
        ("/v1/stats/runs", {"job": "../x"}, "job"),
        ("/v1/stats/partitions", {"history": 1001}, "history"),
        ("/v1/stats/partitions", {"history": "-1"}, "history"),
        ("/v1/stats/partitions", {"topic": "__x"}, "topic"),
        ("/v1/stats/consumers", {"consumer_id": "x"}, "consumer_id"),
        ("/v1/stats/topics", {"minutes": 0}, "minutes"),
        ("/v1/stats/topics", {"minutes": 10_081}, "minutes"),
        ("/v1/consumers", {"colour": "red"}, "colour"),
        ("/v1/consumers", {"limit": 10_001}, "limit"),
        ("/v1/consumers", {"after": "-1"}, "after"),
    ],
)
def test_questions_to_refuse(calls: Calls, path: str, query: dict[str, Any], field: str) -> None:
    assert field in assert_failure(calls.get(path, None, **query), 400, 40001, outcome=None)


def test_lists_of_topics_that_are_not_there(calls: Calls) -> None:
    for path in ("/v1/consumers", "/v1/stats/partitions", "/v1/stats/consumers", "/v1/stats/topics"):
        answer = calls.get(path, topic="no-such-topic")
        assert_failure(answer, 404, 40401, "topic not found", outcome=None)
