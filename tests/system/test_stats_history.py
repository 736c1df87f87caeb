"""History of statistics: a point of every run, also when nothing moved, thinned by `step` and never invented."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests
from typer.testing import CliRunner, Result

from myqueue.cli.app import app
from spark.report import write_report
from tests.calls import Calls, assert_failure
from tests.cluster import Cluster
from tests.jobs import MINUTE_MS, Run, this_minute
from tests.waiting import until


@pytest.fixture
def topic(calls: Calls, topic_name: str) -> dict[str, Any]:
    calls.topic(topic_name, partitions=2)
    return {"topic": topic_name, "topic_id": calls.get(f"/v1/topics/{topic_name}").json()["topic_id"]}


def standing(topic: dict[str, Any], partition_id: int, end: int, **more: object) -> dict[str, Any]:
    """What a run posts of a partition of which it read nothing new."""
    return {**topic, "partition_id": partition_id, "beginning_offset": 0, "end_offset": end, **more}


def read(topic: dict[str, Any], partition_id: int, start: int, end: int, size: int, **more: object) -> dict[str, Any]:
    new = {"from_offset": start, "to_offset": end, "messages": end - start, "payload_bytes": size}
    return {**standing(topic, partition_id, end), **new, **more}


def lag(topic: dict[str, Any], consumer_id: int, partition_id: int, **more: object) -> dict[str, Any]:
    place = {"consumer_id": consumer_id, "topic": topic["topic"], "partition_id": partition_id}
    return {**place, "cursor": 10, "end_offset": 15, "messages": 5, "bytes": 900, "seconds": 1.0, **more}


def test_a_rate_that_fell_to_zero_is_recorded(run: Run, topic: dict[str, Any]) -> None:
    run.taken(query_id="q", batch_id=0, partitions=[standing(topic, 0, 0), standing(topic, 1, 0)])
    run.taken(query_id="q", batch_id=1, partitions=[{**read(topic, 0, 0, 100, 5000)}])
    for _ in range(2):
        run.taken(query_id="q", partitions=[standing(topic, 0, 100)])
    [one, _] = run.partitions(topic["topic"], history=10)
    rates = [point["rate_per_minute"] for point in one["history"]]
    assert [point["end_offset"] for point in one["history"]] == [100, 100, 100, 0]
    assert rates[:2] == [0, 0], "a plot must not go on with the traffic of an hour ago"
    assert rates[2] > 0
    assert rates[3] is None


def test_the_growing_lag_of_a_stuck_consumer_is_recorded(calls: Calls, run: Run, topic: dict[str, Any]) -> None:
    stuck = calls.consumer(topic["topic"], name="stuck")
    for seconds in (1.0, 61.0, 121.0):
        run.taken(consumers=[lag(topic, stuck, 0, seconds=seconds)])
    [one] = run.lags(topic=topic["topic"], history=10)
    assert [point["seconds"] for point in one["history"]] == [121.0, 61.0, 1.0]


def test_totals_of_topics_and_consumers(calls: Calls, run: Run, topic: dict[str, Any]) -> None:
    name = topic["topic"]
    consumer = calls.consumer(name, name="billing")
    empty = {"query_id": "q", "batch_id": 0}
    run.taken(**empty, partitions=[standing(topic, 0, 0, stored_bytes=0), standing(topic, 1, 0, stored_bytes=0)])
    run.taken(consumers=[lag(topic, consumer, 0), lag(topic, consumer, 1)])
    run.taken(consumers=[lag(topic, consumer, 0, cursor=15, messages=0, bytes=0), lag(topic, consumer, 1)])
    new = [read(topic, 0, 0, 90, 900, stored_bytes=2000), read(topic, 1, 0, 10, 100, stored_bytes=1000)]
    run.taken(query_id="q", batch_id=1, partitions=new)
    [total] = run.totals("topics", topic=name, last="1h")
    assert (total["partitions"], total["messages"], total["end_offsets"]) == (2, 100, 100)
    assert (total["payload_bytes"], total["stored_bytes"], total["skew"]) == (1000, 3000, 1.8)
    assert total["rate_in_per_minute"] > 0
    assert total["rate_out_per_minute"] > 0
    assert [point["messages"] for point in total["history"]] == [100, 0]
    assert [point["rate_in_per_minute"] is None for point in total["history"]] == [False, True]
    run.taken(query_id="q", partitions=[standing(topic, 0, 90)])
    [again] = run.totals("topics", topic=name, last="1h")
    assert again == total, "no sum without a partition that was not measured: it would look like a loss"
    [behind] = run.totals("consumers", topic=name, last="1h")
    assert (behind["name"], behind["partitions"], behind["messages"], behind["stored_bytes"]) == ("billing", 2, 5, 900)
    assert (behind["cursors"], behind["end_offsets"], behind["seconds"]) == (25, 30, 1.0)
    assert behind["catch_up_seconds"] is None, "partition 1 is stuck"
    assert [point["messages"] for point in behind["history"]] == [5, 10]
    assert [point["rate_out_per_minute"] is None for point in behind["history"]] == [False, True]


def test_from_to_and_step(calls: Calls, run: Run, topic: dict[str, Any]) -> None:
    name = topic["topic"]
    for _ in range(4):
        run.taken(query_id="q", partitions=[standing(topic, 0, 0)])
    [one] = run.partitions(name, last="1h")
    times = [point["computed_at"] for point in one["history"]]
    assert len(times) == 4
    assert times == sorted(times, reverse=True)
    [part] = run.partitions(name, **{"from": times[2], "to": times[0]})
    assert [point["computed_at"] for point in part["history"]] == times[1:3], "up to, and without, its end"
    [stepped] = run.partitions(name, last="1h", step="365d")
    assert [point["computed_at"] for point in stepped["history"]] == times[:1], "the last one of a step"
    [none] = run.partitions(name, **{"from": 0, "to": 1000})
    assert none["history"] == []
    far = calls.get("/v1/stats/runs", None, **{"from": 10**15, "to": 9 * 10**15})
    assert (far.status_code, far.json()["runs"]) == (200, [])
    refused: list[tuple[dict[str, object], str]] = [
        ({"last": "x"}, "last"),
        ({"last": "1h", "from": 5}, "last"),
        ({"from": 5, "to": 5}, "to"),
        ({"step": "1ms"}, "step"),
        ({"last": "1h", "history": 5}, "history"),
    ]
    for query, field in refused:
        answer = calls.get("/v1/stats/partitions", None, **query)
        assert field in assert_failure(answer, 400, 40001, outcome=None)


def test_tables_and_plots(calls: Calls, run: Run, topic: dict[str, Any]) -> None:
    name = topic["topic"]
    consumer = calls.consumer(name, name='a,b"<c>')
    run.taken(query_id="q", partitions=[standing(topic, 0, 0), standing(topic, 1, 0)])
    for _ in range(2):
        run.taken(consumers=[lag(topic, consumer, 0), lag(topic, consumer, 1)])
    asked = {"topic": name, "last": "1h"}
    text = calls.get("/v1/stats/consumers/totals", {**run.token, "Accept": "text/csv"}, **asked)
    assert text.headers["content-type"] == "text/csv; charset=utf-8"
    first, second = csv.DictReader(io.StringIO(text.text))
    assert (first["name"], first["messages"], first["rate_in_per_minute"]) == ('a,b"<c>', "10", "")
    assert int(first["computed_at"]) < int(second["computed_at"]), "the oldest first"
    assert second["rate_in_per_minute"] == "0.0"
    table = pa.ipc.open_stream(calls.get("/v1/stats/consumers", run.token, **asked, format="arrow").content).read_all()
    assert (table.num_rows, table.schema.field("seconds").type) == (4, pa.float64())
    assert table.column("stored_bytes").to_pylist() == [900] * 4
    for path in ("partitions", "topics", "topics/totals", "consumers", "runs"):
        rows = list(csv.DictReader(io.StringIO(calls.get(f"/v1/stats/{path}", run.token, format="csv").text)))
        assert rows or path == "topics"
        assert all("history" not in row and "bytes" not in row for row in rows)
    picture = calls.get("/v1/stats/plot.svg", run.token, metric="lag_messages", topic=name)
    assert picture.headers["content-type"] == "image/svg+xml"
    assert "a,b&quot;&lt;c&gt;" in picture.text or 'a,b"&lt;c&gt;' in picture.text
    assert "<c>" not in picture.text
    for beyond in ({"to": 0}, {"from": 10**15}, {"to": 10**15}, {"from": 0, "to": 253_402_300_800_000}):
        assert_failure(calls.get("/v1/stats/plot.svg", None, metric="messages", **beyond), 400, 40001, outcome=None)
    assert calls.get("/v1/stats/plot.svg", None, metric="messages", last="3650d").status_code == 200
    assert calls.get("/v1/stats/plot.svg", None, metric="messages", to=5000).status_code == 200
    refused = calls.get("/v1/stats/plot.svg", None, metric="messages", width=9999)
    assert "width" in assert_failure(refused, 400, 40001, outcome=None)


def test_job_metrics(stack: Cluster, run: Run, job: str) -> None:
    def shown() -> str:
        active = stack.address_of(stack.active_write_manager())
        return requests.get(f"{active}/metrics", timeout=5).text

    run.end("failed", message="on purpose", left_out=3)
    until(lambda: f'myqueue_job_last_run_failed{{stats_job="{job}"}} 1.0' in shown(), within_s=40, what="it is shown")
    assert f'myqueue_job_last_run_left_out{{stats_job="{job}"}} 3.0' in shown()
    assert f'myqueue_job_runs_total{{outcome="failed",stats_job="{job}"}} 1.0' in shown()
    assert f'myqueue_job_last_success_timestamp_seconds{{stats_job="{job}"}}' not in shown(), "it never has"


def test_minutes_are_summed_over_a_step(run: Run, topic: dict[str, Any]) -> None:
    hour_ms = 60 * MINUTE_MS
    start = this_minute() // hour_ms * hour_ms - 3 * hour_ms
    minutes = [
        {**topic, "minute": start + n * MINUTE_MS, "messages": 1, "payload_bytes": 10} for n in (0, 30, 59, 60, 61)
    ]
    run.taken(query_id="q", batch_id=0, topics=minutes)
    found = run.minutes(topic["topic"], last="1d", step="1h")
    sums = [(each["minute"], each["messages"], each["payload_bytes"], each["bytes"]) for each in found]
    assert sums == [(start + hour_ms, 2, 20, 20), (start, 3, 30, 30)]
    assert len(run.minutes(topic["topic"], **{"from": start, "to": start + 31 * MINUTE_MS})) == 2


def test_statistics_from_a_shell(calls: Calls, run: Run, topic: dict[str, Any], tmp_path: Path) -> None:
    name = topic["topic"]

    def myqueue(*words: str) -> Result:
        return CliRunner().invoke(app, ["--url", calls.url, *words])

    consumer = calls.consumer(name, name="billing")
    for _ in range(2):
        run.taken(query_id="q", partitions=[standing(topic, 0, 0, stored_bytes=0), standing(topic, 1, 0)])
        run.taken(consumers=[lag(topic, consumer, 0), lag(topic, consumer, 1)])

    def shown() -> str:
        return myqueue("stats", "consumers", name).stdout

    until(lambda: all("billing" in shown() for _ in range(6)), within_s=10, what="all standbys have it")
    assert "never" in shown(), "it is stuck"
    assert "█" in shown()
    assert json.loads(myqueue("stats", "topics", name, "-o", "json").stdout)[0]["messages"] == 0
    rows = list(csv.DictReader(io.StringIO(myqueue("stats", "partitions", name, "-o", "csv").stdout)))
    assert [(row["topic"], row["partition_id"]) for row in rows] == [(name, "0"), (name, "1")]
    assert run.begun["job"] in myqueue("stats", "runs").stdout
    refused = myqueue("topic", "list", "-o", "csv")
    assert (refused.exit_code, "-o csv" in refused.stderr) == (2, True)
    page = tmp_path / "report.html"
    done = write_report(calls.url, 3600, page)
    assert str(page) in done
    assert name in page.read_text() or "more" in page.read_text()
