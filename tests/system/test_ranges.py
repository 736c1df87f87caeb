"""Ranges of messages: whole or refused, redirected by name, cached by the load balancer under the topic's id."""

import pyarrow as pa
import requests

from tests.calls import Calls, assert_failure


def ranged(
    calls: Calls, topic: str, bounds: str, headers: dict[str, str] | None = None, **query: str
) -> requests.Response:
    url = f"{calls.url}/v1/topics/{topic}/partitions/0/ranges/{bounds}"
    return requests.get(url, params=query, headers=headers, timeout=15, allow_redirects=False)


def filled(calls: Calls, topic: str, *values: str) -> str:
    """The topic's id."""
    calls.topic(topic)
    messages = [{"value": value} for value in values]
    assert calls.post(f"/v1/topics/{topic}/messages", {"messages": messages}).status_code == 200
    return str(calls.get(f"/v1/topics/{topic}").json()["topic_id"])


def test_a_name_leads_to_the_range_of_the_topic_that_is_there(calls: Calls, topic_name: str) -> None:
    topic_id = filled(calls, topic_name, "0", "1", "2")
    by_name = ranged(calls, topic_name, "1-3")
    assert (by_name.status_code, by_name.headers["Cache-Control"]) == (307, "no-store")
    found = requests.get(calls.url + by_name.headers["Location"], timeout=15)
    assert topic_id in by_name.headers["Location"]
    listed = calls.get(f"/v1/topics/{topic_name}/partitions/0/messages", offset=1).json()["messages"]
    body = found.json()
    assert (body["messages"], body["topic_id"], body["partition_id"]) == (listed, topic_id, 0)
    lines = requests.get(calls.url + ranged(calls, topic_name, "1-3", format="ndjson").headers["Location"], timeout=15)
    assert [line[:1] for line in lines.text.splitlines()] == ["{", "{"]
    arrow = ranged(calls, topic_name, "1-3", topic_id=topic_id, format="arrow")
    assert pa.ipc.open_stream(arrow.content).read_all()["offset"].to_pylist() == [1, 2]


def test_ranges_are_cached_and_revalidated_by_strong_tags(calls: Calls, topic_name: str) -> None:
    topic_id = filled(calls, topic_name, "0", "1")
    first = ranged(calls, topic_name, "0-2", topic_id=topic_id)
    assert (first.status_code, first.headers["X-Cache-Status"]) == (200, "MISS")
    assert first.headers["Cache-Control"] == "public, max-age=3600, immutable"
    assert "X-Accel-Expires" not in first.headers
    tag = first.headers["ETag"]
    assert tag.startswith('"')
    again = ranged(calls, topic_name, "0-2", topic_id=topic_id)
    assert (again.headers["X-Cache-Status"], again.content, again.headers["ETag"]) == ("HIT", first.content, tag)
    known = ranged(calls, topic_name, "0-2", {"If-None-Match": tag}, topic_id=topic_id)
    assert (known.status_code, known.content) == (304, b"")
    personal = ranged(calls, topic_name, "0-2", {"Authorization": "Bearer x"}, topic_id=topic_id)
    assert (personal.status_code, personal.headers["X-Cache-Status"]) == (200, "BYPASS")
    origin = ranged(calls, topic_name, "0-2", {"If-None-Match": tag, "Authorization": "Bearer x"}, topic_id=topic_id)
    assert (origin.status_code, origin.headers["ETag"]) == (304, tag), "a read manager knows the tag, too"


def test_a_range_that_is_not_complete_is_refused_and_not_cached(calls: Calls, topic_name: str) -> None:
    topic_id = filled(calls, topic_name, "0", "1")
    for _ in range(2):
        refused = ranged(calls, topic_name, "0-3", topic_id=topic_id)
        assert_failure(refused, 422, 42201, outcome=None, details={"partition_id": 0, "end_offset": 2})
        assert refused.headers.get("X-Cache-Status") in (None, "MISS")
    assert calls.post(f"/v1/topics/{topic_name}/messages", {"messages": [{"value": "2"}]}).status_code == 200
    assert len(ranged(calls, topic_name, "0-3", topic_id=topic_id).json()["messages"]) == 3
    for bounds in ("3-3", "2-1", "0", "a-b", "0-10001", "-1-2"):
        assert_failure(ranged(calls, topic_name, bounds), 400, 40001, outcome=None)
    assert_failure(ranged(calls, topic_name, "0-1", topic_id="x"), 400, 40001, outcome=None)


def test_a_range_that_is_too_large_is_refused(calls: Calls, topic_name: str) -> None:
    topic_id = filled(calls, topic_name, "0")
    for _ in range(9):
        assert calls.post(f"/v1/topics/{topic_name}/messages", {"messages": [{"value": "x" * 1_000_000}]}).ok
    assert_failure(ranged(calls, topic_name, "0-10", topic_id=topic_id), 413, 41301, outcome=None)
    assert len(ranged(calls, topic_name, "0-8", topic_id=topic_id).json()["messages"]) == 8


def test_a_topic_that_is_made_anew_never_shows_what_the_old_one_had(calls: Calls, topic_name: str) -> None:
    old_id = filled(calls, topic_name, "old")
    assert ranged(calls, topic_name, "0-1", topic_id=old_id).json()["messages"][0]["value"] == "old"
    assert requests.delete(f"{calls.url}/v1/topics/{topic_name}", timeout=15).status_code == 200
    made = calls.create_topic(topic_name, partitions=1)
    token = {"X-Myqueue-Token": made.headers["X-Myqueue-Token"]}  # whoever sends it on sees the new topic
    sent = requests.post(
        f"{calls.url}/v1/topics/{topic_name}/messages", json={"messages": [{"value": "new"}]}, timeout=15
    )
    assert sent.status_code == 200
    moved = ranged(calls, topic_name, "0-1", token)
    assert old_id not in moved.headers["Location"]
    found = requests.get(calls.url + moved.headers["Location"], headers=token, timeout=15)
    assert found.json()["messages"][0]["value"] == "new"
    fresh = ranged(calls, topic_name, "0-1", token | {"Authorization": "Bearer x"}, topic_id=old_id)  # not the cache's
    assert "deleted" in assert_failure(fresh, 404, 40401, outcome=None)
