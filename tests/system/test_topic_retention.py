"""Changing a topic's retention through the port: the request, the library, the command."""

from pathlib import Path

import pytest
import requests
from typer.testing import CliRunner

from myqueue import Admin, InvalidRequest, Producer, TopicNotFound
from myqueue.cli.app import app
from tests.calls import Calls, assert_failure
from tests.waiting import until


def patch(calls: Calls, topic: str, body: object) -> requests.Response:
    return requests.patch(f"{calls.url}/v1/topics/{topic}", json=body, timeout=15)


def test_what_is_not_given_stays_and_null_removes(calls: Calls, topic_name: str) -> None:
    assert calls.create_topic(topic_name, partitions=2, retention_ms=60_000).status_code == 201
    changed = patch(calls, topic_name, {"retention_bytes": 1 << 30})
    assert changed.status_code == 200, changed.text
    assert (changed.json()["retention_ms"], changed.json()["retention_bytes"]) == (60_000, 1 << 30)
    for _ in range(2):  # the same again is fine, and shown to whoever sends the token on
        removed = patch(calls, topic_name, {"retention_ms": None})
        token = {"X-Myqueue-Token": removed.headers["X-Myqueue-Token"]}
        described = calls.get(f"/v1/topics/{topic_name}", token).json()
        assert described == removed.json()
        assert (described["retention_ms"], described["retention_bytes"]) == (None, 1 << 30)
    assert described["partitions"] == 2


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({}, "give retention_ms, retention_bytes or both; null removes a limit"),
        ({"retention_ms": 0}, "retention_ms: "),
        ({"retention_ms": "60000"}, "retention_ms: "),
        ({"retention_bytes": -1}, "retention_bytes: "),
        ({"partitions": 8}, "partitions of a topic cannot be changed; only its retention can"),
        ({"retention": 5}, "retention: unknown field"),
    ],
)
def test_what_cannot_be_changed_is_refused(calls: Calls, topic_name: str, body: object, what: str) -> None:
    calls.topic(topic_name)
    assert what in assert_failure(patch(calls, topic_name, body), 400, 40001)
    assert calls.get(f"/v1/topics/{topic_name}").json()["retention_ms"] is None


def test_a_topic_that_is_missing_is_not_created(calls: Calls, topic_name: str) -> None:
    assert_failure(patch(calls, topic_name, {"retention_ms": 1000}), 404, 40401)
    assert calls.get(f"/v1/topics/{topic_name}").status_code == 404


def test_put_with_other_settings_points_to_patch(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    put = requests.put(f"{calls.url}/v1/topics/{topic_name}", json={"partitions": 1, "retention_ms": 5}, timeout=15)
    assert "PATCH" in assert_failure(put, 409, put.json()["error_code"])


def test_the_library_changes_it_and_brokers_delete(url: str, topic_name: str) -> None:
    with Admin(url) as admin:
        admin.create_topic(topic_name, partitions=1)
        with Producer(url, topic=topic_name) as producer:
            producer.send_many([b"old"] * 10)
        assert admin.alter_topic(topic_name, retention_ms=1000).retention_ms == 1000
        assert admin.describe_topic(topic_name).retention_ms == 1000
        until(lambda: admin.offsets(topic_name)[0].beginning_offset == 10, within_s=20, what="old messages are gone")
        kept = admin.alter_topic(topic_name, retention_ms=None, retention_bytes=1 << 20)
        assert (kept.retention_ms, kept.retention_bytes) == (None, 1 << 20)
        with pytest.raises(InvalidRequest, match="retention_ms"):
            admin.alter_topic(topic_name)
        with pytest.raises(TopicNotFound):
            admin.alter_topic(topic_name + "-missing", retention_ms=1)


def test_the_command_changes_it(url: str, topic_name: str, tmp_path: Path) -> None:
    runner = CliRunner(env={"MYQUEUE_URL": url, "MYQUEUE_PROFILE": None, "XDG_CONFIG_HOME": str(tmp_path)})
    with Admin(url) as admin:
        admin.create_topic(topic_name, partitions=1)
    done = runner.invoke(app, ["topic", "alter", topic_name, "--retention", "7d"])
    assert (done.exit_code, done.stdout) == (
        0,
        f"topic {topic_name}: 1 partition, 3 copies of each, messages kept for 7d\n",
    )
    done = runner.invoke(app, ["topic", "alter", topic_name, "--retention", "never", "--retention-bytes", "1GiB"])
    assert "messages kept up to 1.0 GiB a partition" in done.stdout
    assert runner.invoke(app, ["topic", "alter", topic_name]).exit_code == 2
    assert runner.invoke(app, ["topic", "alter", topic_name, "--retention", "soon"]).exit_code == 2
