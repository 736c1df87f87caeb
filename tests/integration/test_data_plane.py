"""The data plane of real brokers: batches in and out as they are, what is refused, and what waits."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import requests

from myqueue.protocol import batch as batches
from myqueue.protocol import http_headers, internal
from myqueue.protocol.batch import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD, Message
from myqueue.protocol.dedup_records import decode_dedup_records
from myqueue.protocol.grant import READ, WRITE
from myqueue.protocol.limits import MAX_BATCH_BYTES
from tests.integration import slow_reads
from tests.integration.broker_process import BrokerProcess, Registrar, encoded
from tests.integration.broker_trio import Trio
from tests.waiting import until

TYPE = {"Content-Type": http_headers.BATCH_TYPE}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    registrar = Registrar()
    broker = BrokerProcess(tmp_path_factory.mktemp("data"), registrar.url)
    broker.start()
    yield broker
    broker.close()
    registrar.close()


@pytest.fixture
def broker(running: BrokerProcess) -> BrokerProcess:
    """One for all tests, each with a topic of its own."""
    running.topic_id = uuid4()
    running.create()
    running.await_lead()
    return running


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    trio = Trio(tmp_path_factory.mktemp("trio"))
    trio.start()
    trio.create()
    trio.move_leader(0, 1)
    yield trio
    trio.close()


def batch_of(
    broker: BrokerProcess, values: list[bytes], codec: int = CODEC_NONE, partition_id: int = 0, **stamp: Any
) -> bytes:
    body = batches.encode_body([Message(value) for value in values], codec)
    header = batches.header_for(broker.topic_id, partition_id, body, len(values), codec)
    return replace(header, **stamp).pack() + body


def post(broker: BrokerProcess, data: bytes, **more: str) -> requests.Response:
    return requests.post(broker.data_path(), data=data, headers={**TYPE, **broker.grant(), **more}, timeout=10)


def get(broker: BrokerProcess, offset: int, **more: int) -> requests.Response:
    return requests.get(broker.data_path(), params={"offset": offset, **more}, headers=broker.grant(READ), timeout=40)


def values_in(data: bytes) -> list[bytes]:
    return [
        message.value
        for header, body in batches.batches_in(data)
        for message in batches.messages_of(batches.validate(header, body))
    ]


def refusal(answer: requests.Response) -> tuple[int, int]:
    body = answer.json()
    assert body["status"] == "failure"
    assert "x-request-id" in answer.headers
    return answer.status_code, body["error_code"]


def test_batches_come_out_as_they_went_in(broker: BrokerProcess) -> None:
    sent = [batch_of(broker, [b"a%d" % n, b"b" * n], codec) for n, codec in enumerate((0, 1, 2, 0))]
    for number, data in enumerate(sent):
        answer = post(broker, data).json()
        placed = {"status": "success", "base_offset": 2 * number, "count": 2, "end_offset": 2 * number + 2}
        assert answer == {**placed, "append_time": answer["append_time"], "duplicate": False}
        assert abs(answer["append_time"] - time.time() * 1000) < 60_000
    found = get(broker, 3)
    assert (
        found.status_code,
        found.headers[http_headers.END_OFFSET],
        found.headers[http_headers.BEGINNING_OFFSET],
    ) == (
        200,
        "8",
        "0",
    )
    stored = list(batches.batches_in(found.content))
    assert [header.base_offset for header, _ in stored] == [2, 4, 6]  # the first one holds the offset
    assert [bytes(body) for _, body in stored] == [data[batches.HEADER_BYTES :] for data in sent[1:]]
    assert all(
        header.append_time and header.codec == data[3] for (header, _), data in zip(stored, sent[1:], strict=True)
    )
    assert len(list(batches.batches_in(get(broker, 0, max_bytes=1).content))) == 1  # at least one
    end = get(broker, 8)
    assert (end.status_code, end.content, end.headers[http_headers.END_OFFSET]) == (204, b"", "8")
    assert get(broker, 80).status_code == 204


def test_what_is_stored_survives_a_restart_compressed_or_not(tmp_path: Path) -> None:
    registrar = Registrar()
    broker = BrokerProcess(tmp_path / "data", registrar.url)
    try:
        broker.start()
        broker.create()
        broker.await_lead()
        sent = [batch_of(broker, [b"x" * 1000] * 300, codec) for codec in (CODEC_NONE, CODEC_LZ4, CODEC_ZSTD)]
        for data in sent:
            assert post(broker, data).status_code == 200
        assert broker.stop() == 0
        broker.start()
        until(lambda: broker.offsets(), within_s=10, what="the broker leads again")
        found = get(broker, 0, max_bytes=8 << 20).content
        assert [bytes(body) for _, body in batches.batches_in(found)] == [data[64:] for data in sent]
        assert len(values_in(found)) == 900
        one = broker.fetch(450, 1)  # out of the middle of a compressed batch
        header, body, _ = batches.split(one.content)
        assert (header.base_offset, header.count, header.codec) == (450, 1, CODEC_NONE)
        assert batches.messages_of(batches.validate(header, body))[0].value == b"x" * 1000
    finally:
        broker.close()
        registrar.close()


def test_bad_input_is_refused_and_nothing_of_it_is_written(broker: BrokerProcess) -> None:
    good = batch_of(broker, [b"good"])
    body = bytearray(good[64:])
    body[-1] ^= 1
    arrow = bytes(len(body))
    header = batches.decode_header(good)
    other = UUID(int=5)
    table: list[tuple[str, bytes, dict[str, str], tuple[int, int]]] = [
        ("oversize", bytes(MAX_BATCH_BYTES + 1), {}, (413, 41301)),
        ("no batch", b"", {}, (400, 40001)),
        ("noise", b"\x07" * 500, {}, (400, 40001)),
        ("cut off", good[:-1], {}, (400, 40001)),
        ("something behind it", good + b"x", {}, (400, 40001)),
        ("header CRC", good[:40] + b"\x07" + good[41:], {}, (400, 40001)),
        ("body CRC", good[:64] + bytes(body), {}, (400, 40001)),
        ("broken Arrow", batches.header_for(broker.topic_id, 0, arrow, 1).pack() + arrow, {}, (400, 40001)),
        ("a count that lies", replace(header, count=2).pack() + good[64:], {}, (400, 40001)),
        ("another partition", batch_of(broker, [b"x"], partition_id=1), {}, (400, 40001)),
        ("another topic", replace(header, topic_id=other).pack() + good[64:], {}, (400, 40001)),
        ("unknown codec", replace(header, codec=9).pack() + good[64:], {}, (415, 41502)),
        ("codec of another", replace(header, codec=CODEC_ZSTD).pack() + good[64:], {}, (400, 40001)),
        ("grows too large", batch_of(broker, [bytes(1 << 20)] * 33, CODEC_ZSTD), {}, (413, 41301)),
        ("a message too large", batch_of(broker, [bytes((1 << 20) + 1)]), {}, (413, 41301)),
        ("content type", good, {"Content-Type": "application/json"}, (415, 41501)),
        ("no grant", good, {http_headers.GRANT: ""}, (401, 40102)),
        ("a grant with another signature", good, {http_headers.GRANT: "A" * 63}, (401, 40102)),
        ("an expired grant", good, broker.grant(valid_s=-1), (401, 40102)),
        ("a grant to read", good, broker.grant(READ), (403, 40301)),
        ("a grant for another topic", good, broker.grant(topic_id=other), (403, 40301)),
    ]
    assert post(broker, good).json()["base_offset"] == 0
    for what, data, more, expected in table:
        answer = post(broker, data, **more)
        assert refusal(answer) == expected, (what, answer.text)
        assert answer.json()["outcome"] == "not_written", what
    assert post(broker, good).json()["base_offset"] == 1
    assert values_in(get(broker, 0).content) == [b"good", b"good"]


def test_questions_that_make_no_sense(broker: BrokerProcess) -> None:
    grant = broker.grant()
    url = broker.data_path()
    asked: list[tuple[str, str, tuple[int, int]]] = [
        ("GET", url, (400, 40001)),
        ("GET", url + "?offset=-1", (400, 40001)),
        ("GET", url + "?offset=x", (400, 40001)),
        ("GET", url + "?offset=1&offset=2", (400, 40001)),
        ("GET", url + "?offset=1&max_bytes=0", (400, 40001)),
        ("GET", url + "?offset=1&max_bytes=9000000", (400, 40001)),
        ("GET", url + "?offset=1&color=red", (400, 40001)),
        ("GET", broker.data_path(broker_id=7) + "?offset=0", (421, 42101)),
        ("GET", broker.data_path(5) + "?offset=0", (404, 40402)),
        ("DELETE", url, (405, 40500)),
        ("HEAD", url + "?offset=0", (405, 0)),
        ("GET", url + "/more", (404, 40400)),
        ("GET", url.partition("/v1")[0] + "/healthz", (404, 40400)),
        ("GET", url.partition("/v1")[0] + "/metrics", (404, 40400)),
        ("POST", url.partition("/v1")[0] + "/internal/append", (404, 40400)),
    ]
    for method, place, expected in asked:
        answer = requests.request(method, place, headers=grant, timeout=5)
        assert answer.status_code == expected[0], (method, place, answer.text)
        if expected[1]:
            assert refusal(answer) == expected, (method, place)
    assert requests.delete(url, headers=grant, timeout=5).headers["Allow"] == "GET, POST"


def test_an_idempotent_producer(broker: BrokerProcess) -> None:
    def send(values: list[bytes], sequence: int, epoch: int = 1, producer_id: int = 3) -> requests.Response:
        stamp = {"producer_id": producer_id, "producer_epoch": epoch, "sequence": sequence}
        return post(broker, batch_of(broker, values, **stamp))

    assert refusal(send([b"x"], 4)) == (409, 40906)  # an unknown producer
    assert send([b"a", b"b"], 0).json()["base_offset"] == 0
    assert send([b"c"], 2).json()["base_offset"] == 2
    again = send([b"a", b"b"], 0).json()
    assert (again["base_offset"], again["count"], again["duplicate"], again["end_offset"]) == (0, 2, True, 3)
    assert refusal(send([b"A", b"b"], 0)) == (409, 40903)
    assert refusal(send([b"x"], 5)) == (409, 40904)
    assert send([b"d"], 0, epoch=2).json()["base_offset"] == 3
    assert refusal(send([b"e"], 3, epoch=1)) == (409, 40905)
    assert values_in(get(broker, 0).content) == [b"a", b"b", b"c", b"d"]


def test_below_retention_is_gone(broker: BrokerProcess) -> None:
    broker.create(1, retention_bytes=50_000)
    broker.await_lead(1)
    data = batch_of(broker, [b"x" * 20_000], partition_id=1)
    place = broker.data_path(1)

    def cut() -> list[requests.Response]:
        requests.post(place, data=data, headers={**TYPE, **broker.grant()}, timeout=5)
        answer = requests.get(place + "?offset=0", headers=broker.grant(), timeout=5)
        return [answer] if answer.status_code != 200 else []

    answer = until(cut, within_s=20, what="the log is cut")[0]
    assert refusal(answer) == (410, 41001)
    beginning = answer.json()["details"]["beginning_offset"]
    assert beginning > 0
    found = requests.get(f"{place}?offset={beginning}", headers=broker.grant(), timeout=5)
    assert found.status_code == 200
    assert next(batches.batches_in(found.content))[0].base_offset == beginning


def test_a_waiting_fetch_is_answered_when_something_comes(broker: BrokerProcess) -> None:
    started = time.monotonic()
    assert get(broker, 0, wait_ms=300).status_code == 204
    assert 0.25 < time.monotonic() - started < 5
    timer = threading.Timer(0.3, post, (broker, batch_of(broker, [b"late"])))
    timer.start()
    answer = get(broker, 0, wait_ms=20_000)
    timer.join()
    assert values_in(answer.content) == [b"late"]
    assert time.monotonic() - started < 10


def test_many_that_wait_do_not_hold_up_appends(broker: BrokerProcess) -> None:
    """More than there are threads; appends to another partition go on, and one append answers all of them."""
    broker.create(1)
    broker.await_lead(1)
    count = 200
    other = broker.data_path(1)
    data = batch_of(broker, [b"x"], partition_id=1)
    with ThreadPoolExecutor(count) as pool:
        answers = [pool.submit(get, broker, 0, wait_ms=30_000) for _ in range(count)]
        until(lambda: _gauge(broker, "myqueue_broker_waiting_fetches") == count, within_s=20, what="all of them wait")
        for _ in range(20):
            assert requests.post(other, data=data, headers={**TYPE, **broker.grant()}, timeout=5).status_code == 200
        assert not any(answer.done() for answer in answers)
        assert broker.fetch(0, 1, 1).status_code == 200  # nor does anything else wait for them
        post(broker, batch_of(broker, [b"now"]))
        assert {bytes(values_in(answer.result(20).content)[0]) for answer in answers} == {b"now"}


def _gauge(broker: BrokerProcess, name: str) -> float:
    lines = requests.get(broker.url + "/metrics", timeout=5).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))


def test_those_who_wait_are_let_go_when_the_broker_stops_or_the_topic_goes(tmp_path: Path) -> None:
    registrar = Registrar()
    broker = BrokerProcess(tmp_path / "data", registrar.url)
    try:
        broker.start()
        for partition_id in (0, 1):
            broker.create(partition_id)
            broker.await_lead(partition_id)
        with ThreadPoolExecutor(2) as pool:
            stays = pool.submit(get, broker, 0, wait_ms=30_000)
            place = broker.data_path(1) + "?offset=0&wait_ms=30000"
            goes = pool.submit(requests.get, place, headers=broker.grant(), timeout=40)
            until(lambda: _gauge(broker, "myqueue_broker_waiting_fetches") == 2, within_s=5, what="both wait")
            broker.http.delete(broker.path(1), timeout=5)
            assert refusal(goes.result(5)) == (404, 40402)
            started = time.monotonic()
            assert broker.stop() == 0
            assert stays.result(5).status_code == 204
            assert time.monotonic() - started < 10
    finally:
        broker.close()
        registrar.close()


def test_any_replica_hands_out_what_is_committed_and_only_the_leader_takes(trio: Trio) -> None:
    leader, follower = trio.brokers[1], trio.brokers[2]
    data = batch_of(leader, [b"one", b"two"], CODEC_LZ4)
    base = post(leader, data).json()["base_offset"]
    answer = get(follower, base, wait_ms=5000)
    assert (answer.status_code, values_in(answer.content)) == (200, [b"one", b"two"])
    refused = post(follower, data)
    assert refusal(refused) == (421, 42101)
    assert refused.json()["details"] == {"leader": 1}
    assert refusal(requests.get(follower.data_path(broker_id=1) + "?offset=0", headers=follower.grant())) == (
        421,
        42101,
    )


def test_appends_for_many_partitions_in_one_call(broker: BrokerProcess) -> None:
    broker.create(1)
    broker.await_lead(1)
    items = [
        encoded([b"a", b"b"], ["k0", "k1"], 0, broker.topic_id),
        encoded([b"c"], ["k2"], 1, broker.topic_id),
        encoded([b"d"], [], 7, broker.topic_id),
        b"noise",
        encoded([b"b", b"e"], ["k1", "k3"], 0, broker.topic_id),
    ]
    body = b"".join(internal.APPEND_ITEM.pack(len(item)) + item for item in items)

    def append(data: bytes) -> requests.Response:
        return broker.http.post(broker.url + internal.APPEND.path, data=data, headers=TYPE, timeout=5)

    answers = append(body).json()["answers"]
    assert [answer.get("results") for answer in answers] == [
        [{"offset": 0}, {"offset": 1}],
        [{"offset": 0}],
        None,
        None,
        [{"offset": 1, "duplicate": True}, {"offset": 2}],
    ]
    failures = [answers[2]["error"], answers[3]["error"]]
    assert [(failure["error_code"], failure["outcome"]) for failure in failures] == [
        (40402, "not_written"),
        (40001, "not_written"),
    ]
    assert refusal(append(body[:-1])) == (400, 40001)
    found = broker.http.get(broker.path() + "/batches", params={"offset": 1}, timeout=5)
    view, stored = found.content, []
    while view:
        size, marks_size = internal.FETCH_ITEM.unpack_from(view)
        batch, view = (
            view[internal.FETCH_ITEM.size : internal.FETCH_ITEM.size + size],
            view[internal.FETCH_ITEM.size + size :],
        )
        marks, view = decode_dedup_records(view[:marks_size], 9), view[marks_size:]
        stored.append((values_in(batch), [mark.position for mark in marks]))
    assert stored == [([b"a", b"b"], [0, 1]), ([b"e"], [0])]
    assert found.headers[http_headers.END_OFFSET] == "3"
    secretless = requests.post(broker.url + internal.APPEND.path, data=body, headers=TYPE, timeout=5)
    assert refusal(secretless) == (401, 40101)


def test_how_much_is_stored_since_an_offset(broker: BrokerProcess) -> None:
    sizes = [
        post(broker, data).status_code and len(data) for data in [batch_of(broker, [b"x" * n] * 2) for n in (9, 99)]
    ]

    def since(offset: int | None) -> tuple[Any, Any]:
        name = {"topic_id": str(broker.topic_id), "partition_id": 0, "since": offset}
        asked = {"partitions": [name], "timestamp": None}
        found = broker.http.post(broker.url + internal.OFFSETS.path, json=asked, timeout=5).json()["offsets"][0]
        return found["bytes_since"], found["oldest_since"]

    first, second = (header.append_time for header, _ in batches.batches_in(get(broker, 0).content))
    assert [since(offset) for offset in (0, 1, 2, 4, 9, None)] == [
        (sum(sizes), first),
        (sum(sizes), first),
        (sizes[1], second),
        (0, None),
        (0, None),
        (None, None),
    ]


def test_waiting_for_any_of_several_partitions(broker: BrokerProcess) -> None:
    broker.create(1)
    broker.await_lead(1)

    def wait(offsets: dict[int, int], wait_ms: int) -> Any:
        names = [
            {"topic_id": str(broker.topic_id), "partition_id": partition_id, "offset": offset}
            for partition_id, offset in offsets.items()
        ]
        asked = {"partitions": names, "wait_ms": wait_ms}
        answer = broker.http.post(broker.url + internal.WAIT.path, json=asked, timeout=40).json()
        return {grown["partition_id"]: grown["end_offset"] for grown in answer["grown"]}

    assert wait({0: 0, 1: 0}, 100) == {}
    assert wait({0: -1, 1: 0}, 20_000) == {0: 0}
    assert wait({0: 0, 9: 0}, 20_000) == {9: -1}
    timer = threading.Timer(0.3, broker.append, ([b"x", b"y"], (), 1))
    timer.start()
    assert wait({0: 0, 1: 0}, 20_000) == {1: 2}
    timer.join()
    assert wait({0: 0, 1: 1}, 20_000) == {1: 2}


def test_grants_for_one_direction(broker: BrokerProcess) -> None:
    data = batch_of(broker, [b"x"])
    assert post(broker, data, **broker.grant(WRITE)).status_code == 200
    asked = requests.get(broker.data_path() + "?offset=0", headers=broker.grant(WRITE), timeout=5)
    assert refusal(asked) == (403, 40301)


def test_a_compressed_append_does_not_wait_for_slow_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tmp_path / "reads"
    count.touch()
    monkeypatch.setenv(slow_reads.COUNT, str(count))
    registrar = Registrar()
    threads = ("--read-cache-bytes", "0", "--read-threads", "2", "--validate-threads", "2")
    broker = BrokerProcess(tmp_path / "data", registrar.url, *threads, module=slow_reads.__name__)
    with ThreadPoolExecutor(4) as fetches:
        try:
            broker.start()
            broker.create()
            broker.await_lead()
            large = batch_of(broker, [bytes(1000)] * 300, CODEC_LZ4)
            assert post(broker, large).json()["end_offset"] == 300
            waiting = [fetches.submit(get, broker, 0) for _ in range(4)]
            until(lambda: count.stat().st_size == 2, within_s=10, what="every reading thread waits for the disk")
            assert post(broker, large).json()["end_offset"] == 600
            assert not any(one.done() for one in waiting)
        finally:
            broker.close()
            registrar.close()
