"""Runs of jobs: one at a time, one for each tick, by insiders only."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from myqueue.protocol import http_headers, internal
from tests.calls import Calls, assert_failure, token_of
from tests.cluster import Cluster
from tests.jobs import MINUTE_MS, Inside, Run, this_minute


def test_a_run_from_its_beginning_to_its_end(calls: Calls, inside: Inside, job: str) -> None:
    before_ms = time.time_ns() // 1_000_000
    run = Run(calls, inside, job, trigger="schedule", tick=before_ms)
    assert (run.begun["job"], run.begun["lease_ms"]) == (job, 30_000)
    assert before_ms - 1000 < run.begun["started_at"] < before_ms + 10_000
    assert run.renew().json() == {"status": "success", "lease_ms": 30_000}
    ended = run.end(rows=17, message="all is well")
    assert ended.status_code == 200, ended.text
    token = token_of(ended)
    for _ in range(4):  # both read managers
        [listed] = calls.get("/v1/stats/runs", token, job=job).json()["runs"]
        assert listed.pop("ended_at") >= run.begun["started_at"]
        assert listed == {
            "run_id": run.begun["run_id"],
            "job": job,
            "holder": "test",
            "trigger": "schedule",
            "tick": before_ms,
            "started_at": run.begun["started_at"],
            "outcome": "succeeded",
            "rows": 17,
            "left_out": 0,
            "message": "all is well",
        }


def test_runs_are_listed_newest_first(calls: Calls, inside: Inside, job: str) -> None:
    for outcome in ("succeeded", "failed"):
        Run(calls, inside, job).end(outcome)
    token = Run(calls, inside, job).token
    listed = calls.get("/v1/stats/runs", token, job=job).json()["runs"]
    assert [entry["outcome"] for entry in listed] == ["running", "failed", "succeeded"]
    assert (listed[0]["ended_at"], listed[0]["tick"]) == (None, None)
    assert calls.get("/v1/stats/runs", token, job=job, limit=1).json()["runs"] == listed[:1]
    assert calls.get("/v1/stats/runs", token, job=job, before=listed[0]["run_id"]).json()["runs"] == listed[1:]
    assert calls.get("/v1/stats/runs", token, job="no_such_job").json() == {"status": "success", "runs": []}


def test_one_run_of_a_job_at_a_time(calls: Calls, inside: Inside, job: str) -> None:
    first = Run(calls, inside, job)
    refused = inside.begin({"job": job, "holder": "another"})
    holder = {"run_id": first.begun["run_id"], "holder": "test", "started_at": first.begun["started_at"]}
    assert job in assert_failure(refused, 409, 40909, details=holder)
    Run(calls, inside, job + "_2")  # another job is not in its way
    assert first.end("failed", message="broken").status_code == 200
    assert Run(calls, inside, job).begun["run_id"] > first.begun["run_id"]


def test_of_many_that_begin_at_once_one_does(inside: Inside, job: str) -> None:
    def begin(number: int) -> int:
        return inside.begin({"job": job, "holder": f"holder {number}"}).status_code

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(begin, range(8))) == [201] + 7 * [409]


def test_a_tick_is_run_once(calls: Calls, inside: Inside, job: str) -> None:
    tick = this_minute()

    def assert_taken(at: int, run: Run, outcome: str) -> None:
        answer = inside.begin({"job": job, "holder": "late", "trigger": "schedule", "tick": at})
        assert_failure(answer, 409, 40911, details={"run_id": run.begun["run_id"], "outcome": outcome})

    first = Run(calls, inside, job, tick=tick)
    assert_taken(tick, first, "running")
    busy = inside.begin({"job": job, "holder": "early", "tick": tick + MINUTE_MS})
    assert busy.json()["error_code"] == 40909, "a tick that could not be begun is not taken"
    first.end("failed")
    for at in (tick, tick - MINUTE_MS, 0):
        assert_taken(at, first, "failed")  # the next tick is the retry
    Run(calls, inside, job).end()  # a run without a tick takes none
    second = Run(calls, inside, job, tick=tick + MINUTE_MS)
    assert second.end().status_code == 200
    assert_taken(tick, second, "succeeded")
    far = inside.begin({"job": job, "holder": "h", "tick": tick + 1500 * MINUTE_MS})
    assert "tick" in assert_failure(far, 400, 40001)


def test_a_begin_that_is_repeated_gets_the_same_run(inside: Inside, job: str) -> None:
    body = {"job": job, "holder": "test", "tick": this_minute()}
    first, again = (inside.begin(body, key=f"begin {job}") for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    other = inside.begin({"job": job, "holder": "test"}, key=f"another {job}")
    holder = {"run_id": first.json()["run_id"], "holder": "test", "started_at": first.json()["started_at"]}
    assert_failure(other, 409, 40909, details=holder)


def test_what_has_ended_stays_ended(run: Run) -> None:
    assert run.end("failed", message="first").status_code == 200
    assert run.end("failed", message="said again").status_code == 200
    for answer in (run.end("succeeded"), run.renew(), run.results()):
        message = assert_failure(answer, 409, 40910, details={"outcome": "failed"})
        assert str(run.begun["run_id"]) in message


RUN_CALLS = {internal.RENEW_RUN.path: {}, internal.POST_RESULTS.path: {}, internal.END_RUN.path: {"outcome": "failed"}}


def test_runs_that_nobody_began(inside: Inside) -> None:
    for path, body in RUN_CALLS.items():
        for unknown in (2_000_000_000, 99_999_999_999):
            assert_failure(inside.post(path.format(run_id=unknown), body), 404, 40407, "run not found")
        assert "run_id" in assert_failure(inside.post(path.format(run_id="one"), body), 400, 40001)


def test_jobs_are_run_by_insiders_only(calls: Calls, stack: Cluster, run: Run, job: str) -> None:
    """Not through the port, not even with the secret; and inside not without it."""
    begin = (internal.BEGIN_RUN.path, {"job": job + "_2", "holder": "h"})
    secret = {http_headers.SECRET: stack.secret}
    for path, body in (begin, *((path.format(run_id=run.begun["run_id"]), body) for path, body in RUN_CALLS.items())):
        assert_failure(calls.post(path, body, secret), 404, 40400, "no such path")
        public = path.replace("/internal/jobs", "/v1/stats")
        assert calls.post(public, body, secret).json()["error_code"] in (40400, 40500)
        for wrong in ({}, {http_headers.SECRET: "wrong"}):
            answer = requests.post(stack.internal_url + path, json=body, headers=wrong, timeout=15)
            assert (answer.status_code, answer.json()["error_code"]) == (401, 40101)
    assert run.renew().status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"holder": "h"}, "job"),
        ({"job": "Job", "holder": "h"}, "job"),
        ({"job": "a" * 101, "holder": "h"}, "job"),
        ({"job": "", "holder": "h"}, "job"),
        ({"job": "a\n", "holder": "h"}, "job"),
        ({"job": "j"}, "holder"),
        ({"job": "j", "holder": ""}, "holder"),
        ({"job": "j", "holder": "h\x00"}, "holder"),
        ({"job": "j", "holder": "h", "trigger": "chance"}, "trigger"),
        ({"job": "j", "holder": "h", "tick": -1}, "tick"),
        ({"job": "j", "holder": "h", "tick": "now"}, "tick"),
    ],
)
def test_begins_to_refuse(inside: Inside, body: dict[str, Any], field: str) -> None:
    assert field in assert_failure(inside.begin(body), 400, 40001)


def test_ends_to_refuse(run: Run) -> None:
    assert "outcome" in assert_failure(run.end("lost"), 400, 40001)
    assert "rows" in assert_failure(run.end(rows=-1), 400, 40001)
    for message in ("x" * 2001, "\x00", 5):
        assert "message" in assert_failure(run.end(message=message), 400, 40001)
    assert run.renew().status_code == 200
