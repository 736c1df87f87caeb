"""A real broker process over HTTP: its routes, its restarts, its registration, what it refuses."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import requests

from myqueue.protocol import batch as batches
from tests.integration.broker_process import SECRET, TOPIC_ID, BrokerProcess, Registrar, encoded
from tests.stored_files import read_state
from tests.waiting import until


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    registrar = Registrar()
    broker = BrokerProcess(tmp_path_factory.mktemp("shared"), registrar.url)
    broker.start()
    yield broker
    broker.close()
    registrar.close()


@pytest.fixture
def shared(running: BrokerProcess) -> Iterator[BrokerProcess]:
    """One for all tests that only talk to it, each about a topic of its own."""
    running.topic_id = uuid4()
    yield running
    for topic in running.http.get(running.url + "/internal/topics", timeout=5).json()["topics"]:
        for partition_id in topic["partitions"]:
            running.http.delete(running.path(partition_id), timeout=5)


def test_a_message_makes_the_round_trip(shared: BrokerProcess) -> None:
    assert [shared.create().status_code for _ in range(2)] == [201, 200]
    answer = shared.append([b"a", b"b", b"c"], ["k0", "k1", "k2"]).json()
    assert answer["results"] == [{"offset": 0}, {"offset": 1}, {"offset": 2}]
    assert shared.append([b"b", b"d"], ["k1", "k3"]).json()["results"] == [
        {"offset": 1, "duplicate": True},
        {"offset": 3},
    ]
    assert shared.read_all() == [b"a", b"b", b"c", b"d"]
    header, _, _ = batches.split(shared.fetch(1).content)
    assert (header.base_offset, header.count, header.append_time) == (1, 1, answer["append_time"])


def test_topics_and_offsets(shared: BrokerProcess) -> None:
    for partition_id in (0, 2):
        shared.create(partition_id)
    shared.append([b"a", b"b"])
    topic = {"topic": "orders", "topic_id": str(shared.topic_id), "partitions": [0, 2]}
    assert shared.http.get(shared.url + "/internal/topics").json()["topics"] == [topic]
    assert shared.http.get(f"{shared.url}/internal/topics/{shared.topic_id}").json() == {"status": "success", **topic}
    missing = shared.http.get(f"{shared.url}/internal/topics/{uuid4()}")
    assert (missing.status_code, missing.json()["error_code"]) == (404, 40401)
    names = [{"topic_id": str(shared.topic_id), "partition_id": n} for n in (0, 1, 2)]
    for partition_id in (0, 2):
        shared.await_lead(partition_id)
    asked = {"partitions": names, "timestamp": 2**62}
    found = shared.http.post(shared.url + "/internal/offsets", json=asked).json()["offsets"]
    assert found[1] is None
    assert (found[0]["beginning_offset"], found[0]["end_offset"], found[0]["offset_at"]) == (0, 2, 2)
    assert (found[2]["end_offset"], found[2]["size_bytes"]) == (0, 0)


def test_a_dropped_partition_is_gone(shared: BrokerProcess) -> None:
    shared.create()
    shared.append([b"a"])
    assert [shared.http.delete(shared.path()).status_code for _ in range(2)] == [200, 404]
    for answer in (shared.append([b"b"]), shared.fetch(0)):
        assert (answer.status_code, answer.json()["error_code"]) == (404, 40402)


def test_bad_input_is_refused_and_nothing_is_written(shared: BrokerProcess) -> None:
    shared.create()
    good = encoded([b"a"], ["k"], topic_id=shared.topic_id)
    _, body, _ = batches.split(encoded([b"a"], topic_id=shared.topic_id))
    flipped = bytearray(good)
    flipped[70] ^= 1
    bad: list[tuple[int, bytes]] = [
        (400, b""),
        (400, b"garbage"),
        (400, good[:100]),
        (400, good[:-1]),
        (400, good + good[-28:]),
        (400, bytes(flipped)),
        (404, encoded([b"a"], partition_id=1, topic_id=shared.topic_id)),
        (400, batches.header_for(shared.topic_id, 0, b"not arrow", 1).pack() + b"not arrow"),
        (400, batches.header_for(shared.topic_id, 0, bytes(body), 2).pack() + bytes(body)),
        (413, encoded([b"x" * (1 << 20)] * 5, topic_id=shared.topic_id)),
        (413, encoded([b"x" * ((1 << 20) + 1)], topic_id=shared.topic_id)),
        (413, b"x" * ((8 << 20) + 1)),
    ]
    for status, data in bad:
        answer = shared.post(data)
        assert (answer.status_code, answer.json()["outcome"]) == (status, "not_written"), answer.text
    assert shared.post(good, content_type="application/json").status_code == 415
    assert shared.read_all() == []


def test_a_connection_serves_on_after_a_body_that_was_too_large(shared: BrokerProcess) -> None:
    shared.create()
    limit = 8 << 20
    for _ in range(20):
        assert shared.post(b"x" * (limit + 1)).status_code == 413
        assert shared.post(b"garbage").status_code == 400
    answer = shared.http.post(shared.url + "/internal/append", data=iter([b"x" * limit] * 3), timeout=5)
    assert (answer.status_code, answer.headers["connection"]) == (413, "close")
    assert shared.post(b"garbage").status_code == 400


def test_bad_commands_are_refused(shared: BrokerProcess) -> None:
    shared.create()
    shared.append([b"a"])
    me = {"broker_id": 41, "incarnation": shared.incarnation()}
    other = {"broker_id": 7, "incarnation": "0" * 16}
    spec = {"topic": "orders", "founders": [me], "retention_ms": None, "retention_bytes": None}
    for method, path, body, status in (
        ("PUT", "", {**spec, "founders": []}, 400),
        ("PUT", "", {**spec, "founders": [{"broker_id": 1, "incarnation": "xyz"}]}, 400),
        ("PUT", "", {**spec, "retention_ms": 0}, 400),
        ("PUT", "", {"topic": "orders"}, 400),
        ("PUT", "", {**spec, "topic": "others"}, 409),
        ("POST", "/members", {"step": "add", "member": other, "expected": 0}, 400),
        ("POST", "/members", {"step": "add_learner", "member": other, "expected": 99}, 409),
        ("POST", "/members", {"step": "promote", "member": other, "expected": 0}, 409),
        ("POST", "/members", {"step": "remove", "member": me, "expected": 0}, 409),
        ("POST", "/leader", {"broker_id": 7}, 409),
        ("POST", "/leader", {}, 400),
    ):
        answer = shared.http.request(method, shared.path() + path, json=body, timeout=5)
        assert (answer.status_code, answer.json()["status"]) == (status, "failure"), (path, body, answer.text)
    assert shared.append([b"b"]).status_code == 200


def test_bad_calls_get_our_errors(shared: BrokerProcess) -> None:
    shared.create()
    for method, path, status in (
        ("GET", "/internal/topics/{topic}/partitions/0/messages", 400),
        ("GET", "/internal/topics/{topic}/partitions/0/messages?offset=-1", 400),
        ("GET", "/internal/topics/{topic}/partitions/0/messages?offset=0&limit=0", 400),
        ("GET", "/internal/topics/{topic}/partitions/0/messages?offset=9223372036854775808", 400),
        ("GET", "/internal/topics/{topic}/partitions/0/messages?offset=0&more=1", 400),
        ("GET", "/internal/topics/{topic}/partitions/1/messages?offset=0", 404),
        ("GET", "/internal/topics/{topic}/partitions/x/messages?offset=0", 400),
        ("GET", "/internal/topics/nothing/partitions/0/messages?offset=0", 400),
        ("PUT", "/internal/topics/{topic}/partitions/65536", 400),
        ("PATCH", "/internal/topics", 405),
        ("GET", "/topics", 404),
    ):
        answer = shared.http.request(method, shared.url + path.format(topic=shared.topic_id))
        assert answer.status_code == status, path
        assert answer.json()["status"] == "failure"


def test_internal_routes_need_the_secret(shared: BrokerProcess) -> None:
    for sent in ({}, {"X-Myqueue-Secret": "wrong"}):
        assert requests.get(shared.url + "/internal/topics", headers=sent, timeout=5).status_code == 401
    assert requests.get(shared.url + "/metrics", timeout=5).status_code == 200


def test_it_registers_and_reports_changes_only(broker: BrokerProcess, registrar: Registrar) -> None:
    until(lambda: registrar.registrations, within_s=5, what="registered")
    registration = registrar.registrations[0]
    assert registration["endpoint"] == broker.url
    assert registration["broker_id"] is None
    assert registration["raft_address"].startswith("127.0.0.1:")
    assert abs(registration["clock_ms"] / 1000 - time.time()) < 60
    assert len(registration["incarnation"]) == 16
    assert registrar.secrets == {SECRET}
    until(lambda: requests.get(broker.url + "/readyz", timeout=5).status_code == 200, within_s=5, what="ready")
    broker.create()
    broker.append([b"a"])

    def last_report() -> dict[str, Any] | None:
        reports = [report for beat in registrar.heartbeats for report in beat["partitions"]]
        return reports[-1] if reports and reports[-1]["end_offset"] == 1 else None

    report = until(last_report, within_s=5, what="the append is reported")
    assert (report["topic_id"], report["partition_id"], report["role"]) == (str(TOPIC_ID), 0, "leader")
    assert report["configuration"]["voters"] == [{"broker_id": 41, "incarnation": registration["incarnation"]}]
    seen = len(registrar.heartbeats)
    until(lambda: len(registrar.heartbeats) > seen + 2, within_s=5, what="more heartbeats")
    assert all(beat["partitions"] == [] for beat in registrar.heartbeats[seen + 1 :])
    assert registrar.heartbeats[-1]["path"] == "/internal/brokers/41/heartbeat"


def test_it_registers_again_when_it_was_forgotten(broker: BrokerProcess, registrar: Registrar) -> None:
    broker.create()
    until(lambda: registrar.heartbeats, within_s=5, what="a heartbeat")
    registrar.knows_brokers = False
    until(lambda: len(registrar.registrations) == 2, within_s=5, what="registered again")
    assert registrar.registrations[1]["broker_id"] == 41
    assert [report["partition_id"] for report in registrar.registrations[1]["partitions"]] == [0]


def test_it_serves_without_a_write_manager_and_keeps_its_id(tmp_path: Path, registrar: Registrar) -> None:
    broker = BrokerProcess(tmp_path / "data", registrar.url).start()
    try:
        until(lambda: registrar.heartbeats, within_s=5, what="a heartbeat")
        assert broker.stop() == 0
        url = registrar.url
        registrar.close()
        broker.start()
        assert broker.create().status_code == 201
        assert broker.append([b"a"]).status_code == 200
        ready = requests.get(broker.url + "/readyz", timeout=5)
        assert ready.status_code == 503
        assert url in ready.json()["checks"]["registration"]
        assert broker.stop() == 0
        assert read_state(broker.folder).values["broker_id"] == "41"
    finally:
        broker.close()


def test_memory_storage_is_the_same_api(tmp_path: Path, registrar: Registrar) -> None:
    broker = BrokerProcess(tmp_path / "data", registrar.url, "--storage", "memory").start()
    try:
        until(lambda: registrar.heartbeats, within_s=5, what="a heartbeat")
        broker.create(founders=[{"broker_id": 41, "incarnation": registrar.registrations[0]["incarnation"]}])
        broker.append([b"a", b"b"])
        assert broker.read_all() == [b"a", b"b"]
        assert not broker.folder.exists()
        assert broker.stop() == 0
    finally:
        broker.close()


def test_a_clean_stop_answers_what_it_took(broker: BrokerProcess) -> None:
    broker.create()
    acknowledged: list[bytes] = []

    def produce() -> None:
        for number in range(100_000):
            try:
                answer = broker.append([b"%d" % number])
            except requests.RequestException:
                return
            if answer.status_code != 200:
                return
            acknowledged.append(b"%d" % number)

    thread = threading.Thread(target=produce)
    thread.start()
    until(lambda: len(acknowledged) > 50, within_s=10, what="appends")
    assert broker.stop() == 0
    thread.join(10)
    broker.start()
    broker.await_lead()
    assert broker.read_all()[: len(acknowledged)] == acknowledged
