"""`myqueue cluster`, `bench` and `doctor` against a stack that is well; tests/fault/test_doctor.py breaks one."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from myqueue.cli.app import app
from stack.ports import choose_inner_ports
from tests.calls import Calls
from tests.waiting import until

MYQUEUE = [sys.executable, "-m", "myqueue.cli"]
TIERS = [
    "address",
    "load balancer",
    "read managers",
    "write manager",
    "PostgreSQL",
    "brokers",
    "partitions",
    "replicas",
    "clock",
    "versions",
    "round trip",
]
SILENT = "does not answer"


def myqueue(url: str, *words: str) -> Result:
    return CliRunner().invoke(app, ["--url", url, *words])


def document(done: Result) -> Any:
    return json.loads(done.stdout)


def topics_like(calls: Calls, start: str) -> list[str]:
    answer = calls.get("/topics")
    assert answer.status_code in (200, 404), answer.text  # 404: there is none at all
    return [name for name in answer.json().get("topics", ()) if name.startswith(start)]


def await_none_like(calls: Calls, start: str) -> None:
    """A standby may not know yet that they are deleted."""
    until(lambda: not topics_like(calls, start), within_s=10, what="they are gone")


@pytest.fixture
def nowhere() -> str:
    """An address at which no process listens."""
    return f"http://127.0.0.1:{choose_inner_ports(['nobody'], {}, 0)['nobody']}"


def test_status_names_every_process(url: str, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, partitions=2)
    calls.sent(topic_name, calls.producer(topic_name), "hello")
    answered = document(myqueue(url, "cluster", "status", "-o", "json"))
    assert answered["ready"] is True
    assert [broker["state"] for broker in answered["brokers"]] == ["active"] * 3
    assert [server["role"] for server in answered["databases"]] == ["primary", "standby", "standby"]
    assert answered["messages"] >= 1
    assert (answered["without_leader"], answered["under_replicated"]) == ([], [])
    shown = myqueue(url, "cluster", "status")
    assert shown.exit_code == 0
    assert shown.stdout.startswith(f"{url}: ready\n")
    for name in ("broker-3", "PostgreSQL standby", *(manager["name"] for manager in answered["read_managers"])):
        assert re.search(rf"^{name} +active", shown.stdout, re.MULTILINE), shown.stdout


def test_watch_prints_a_line_for_each_look(url: str) -> None:
    # A look lasts no longer than the time between two of them.
    shown = myqueue(url, "cluster", "watch", "--every", "3", "-n", "2").stdout.splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "", line).split()[:2] for line in shown] == [["ready", "brokers=3/3"]] * 2
    answered = myqueue(url, "cluster", "watch", "--every", "3", "-n", "2", "-o", "json").stdout.splitlines()
    assert ["messages_per_s" in json.loads(line) for line in answered] == [False, True]


def test_watch_stays_in_place_on_a_terminal(url: str) -> None:
    ours, theirs = pty.openpty()
    command = [*MYQUEUE, "cluster", "watch", "--every", "3", "-n", "2", "--url", url]
    shown = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"})
    os.close(theirs)
    seen = b""
    while select.select([ours], [], [], 30)[0]:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
    os.close(ours)
    assert shown.wait(30) == 0, seen
    assert b"broker-1" in seen
    assert b"\x1b[1A" in seen, "the second look goes over the first"
    assert seen.count(b"\x1b[?25l") == seen.count(b"\x1b[?25h") == 1, "the cursor is back"


def test_bench_measures_both_ways_and_cleans_up(url: str, calls: Calls) -> None:
    answered = document(myqueue(url, "bench", "--seconds", "5", "--messages", "5000", "--size", "64", "-o", "json"))
    assert (answered["produce"]["messages"], answered["consume"]["messages"]) == (5000, 5000)
    assert answered["one_at_a_time"]["messages"] >= 1
    await_none_like(calls, "_bench.")


def test_bench_cleans_up_after_ctrl_c(url: str, calls: Calls) -> None:
    command = [*MYQUEUE, "bench", "--seconds", "60", "--messages", "100000000", "--url", url]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: topics_like(calls, "_bench."), within_s=20, what="bench has its topic")
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert (running.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    await_none_like(calls, "_bench.")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["bench", "--seconds", "0"], "--seconds"),
        (["bench", "--size", "99999999"], "--size"),
        (["cluster", "watch", "--every", "0"], "--every"),
        (["cluster", "watch", "-n", "0"], "--count"),
        (["completion", "tcsh"], "tcsh"),
    ],
)
def test_bad_options_are_named(words: list[str], option: str) -> None:
    done = myqueue("http://127.0.0.1:1", *words)
    assert done.exit_code == 2
    assert option in done.stderr


@pytest.mark.parametrize("words", [["cluster", "status"], ["cluster", "watch"], ["bench"]])
def test_a_server_that_is_away_is_told_at_once(nowhere: str, words: list[str]) -> None:
    done = myqueue(nowhere, *words)
    assert (done.exit_code, done.stdout) == (3, "")
    assert f"cannot connect to {nowhere}" in done.stderr


def test_doctor_finds_nothing_wrong(url: str, calls: Calls) -> None:
    before = topics_like(calls, "_doctor.")
    done = myqueue(url, "doctor", "-o", "json")
    findings = document(done)["findings"]
    assert [finding for finding in findings if finding["state"] != "ok"] == []
    assert [finding["tier"] for finding in findings] == TIERS
    assert done.exit_code == 0
    # A standby may not know yet that it is deleted.
    until(lambda: topics_like(calls, "_doctor.") == before, within_s=10, what="its topic is gone")


def test_doctor_where_nobody_listens(nowhere: str) -> None:
    done = myqueue(nowhere, "doctor")
    assert done.exit_code == 1
    assert f"failure  address        {nowhere} (from --url): nothing listens" in done.stdout
    assert "make start NAME=nginx" in done.stdout


@pytest.fixture(params=["silent", "another"])
def stranger(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Something else than myqueue at a port, and what doctor should say of it."""
    over = threading.Event()

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if request.param == "silent":
                over.wait(30)
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = {"silent": SILENT, "another": "not myqueue (BaseHTTP"}[request.param]
        yield f"http://127.0.0.1:{server.server_port}", said
        over.set()
        server.shutdown()


def test_doctor_knows_a_stranger(stranger: tuple[str, str]) -> None:
    url, said = stranger
    timeout_s = "1" if said == SILENT else "10"  # one that answers may be slow
    done = myqueue(url, "doctor", "--timeout", timeout_s)
    assert done.exit_code == 1
    assert re.search(rf"^failure  load balancer  .*{re.escape(said)}", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^skipped  the rest", done.stdout, re.MULTILINE)


def test_doctor_knows_a_name_that_means_nothing() -> None:
    done = myqueue("http://no-such-host.invalid", "doctor")
    assert done.exit_code == 1
    assert "unknown host" in done.stdout
