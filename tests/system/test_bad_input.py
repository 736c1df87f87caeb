"""Input to refuse, on every route of the simple API: our JSON always, the right status, and nothing half-written."""

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
import requests

from myqueue.protocol.limits import MAX_KEY_BYTES, MAX_MESSAGE_BYTES, topic_name_problem
from myqueue.protocol.routes import SIMPLE_API
from tests.calls import Calls, assert_failure
from tests.waiting import until

JSON = {"Content-Type": "application/json"}
GZIP = {**JSON, "Content-Encoding": "gzip"}
POSTS = ("/topics", "/producer/register", "/consumer/register", "/producer/produce")
QUERIES = ("/consumer/consume", "/size")
REFUSED = "must-not-exist"  # the topic that a refused request would have made
FIVE_THOUSAND_DIGITS = "9" * 5000


@dataclass(frozen=True)
class Scene:
    """A topic with one message, and a correct request for every route on it."""

    topic: str
    producer: int
    consumer: int

    def body(self, path: str) -> dict[str, Any]:
        bodies: dict[str, dict[str, Any]] = {
            "/topics": {"name": REFUSED},
            "/producer/register": {"topic": self.topic},
            "/consumer/register": {"topic": self.topic},
            "/producer/produce": {"topic": self.topic, "producer_id": self.producer, "message": "x"},
        }
        return bodies[path]

    def query(self) -> dict[str, str]:
        return {"topic": self.topic, "consumer_id": str(self.consumer)}


@pytest.fixture(scope="module")
def scene(url: str) -> Iterator[Scene]:
    with requests.Session() as session:
        calls = Calls(url, session)
        topic = calls.topic("bad-input", partitions=2)
        producer, consumer = calls.producer(topic), calls.consumer(topic)
        calls.sent(topic, producer, "the only message", partition_id=0)
        yield Scene(topic, producer, consumer)
        topics = calls.get("/topics").json()["topics"]
        assert REFUSED not in topics
        assert all(topic_name_problem(name) is None for name in topics)


@pytest.fixture(autouse=True)
def nothing_is_written(scene: Scene, calls: Calls) -> Iterator[None]:
    """The one message stays the only one, and unread. Tests that may write use topics of their own."""
    yield
    until(
        lambda: calls.size(scene.topic, scene.consumer).json() == {"status": "success", "size": 1},
        within_s=10,
        what="there is one message to read",
    )


def send(calls: Calls, path: str, data: bytes | str, headers: dict[str, str] | None = None) -> requests.Response:
    body = data.encode() if isinstance(data, str) else data
    return requests.post(calls.url + path, data=body, headers=JSON if headers is None else headers, timeout=15)


def with_literal(body: dict[str, Any], field: str, literal: str) -> str:
    """The body as JSON text with something in a field that no encoder would write."""
    return json.dumps({**body, field: "@@"}).replace('"@@"', literal)


# ---- bodies ----

NOT_AN_OBJECT = {
    "no body": b"",
    "blank": b"  \n",
    "null": b"null",
    "a list": b"[]",
    "a string": b'"x"',
    "a number": b"17",
    "cut off": b'{"topic": "a',
    "no value": b'{"topic":}',
    "single quotes": b"{'topic': 'a'}",
    "a trailing comma": b'{"topic": "a",}',
    "not UTF-8": b"\xff\xfe{}",
    "not UTF-8 in a string": b'{"topic": "\xff", "name": "\xc3\x28"}',
    "UTF-16": '{"topic": "a"}'.encode("utf-16"),
    "lists 100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "objects 100,000 deep": b'{"topic":' * 100_000 + b"1" + b"}" * 100_000,
    "an open nest": b'{"topic":[' * 50_000,
    "a huge number": FIVE_THOUSAND_DIGITS.encode(),
    "NaN": b"NaN",
}


@pytest.mark.parametrize("data", NOT_AN_OBJECT.values(), ids=NOT_AN_OBJECT)
@pytest.mark.parametrize("path", POSTS)
def test_bodies_that_are_no_request(calls: Calls, path: str, data: bytes) -> None:
    assert_failure(send(calls, path, data), 400, 40001)


@pytest.mark.parametrize("path", POSTS)
def test_trailing_garbage(calls: Calls, scene: Scene, path: str) -> None:
    for garbage in ("x", "{}", "]", "\x00", ' "'):
        assert_failure(send(calls, path, json.dumps(scene.body(path)) + garbage), 400, 40001)


@pytest.mark.parametrize("path", POSTS)
def test_unknown_fields_are_named(calls: Calls, scene: Scene, path: str) -> None:
    for name in ("colour", "Topic", "__proto__", "status"):
        message = assert_failure(calls.post(path, {**scene.body(path), name: "x"}), 400, 40001)
        assert name in message


@pytest.mark.parametrize("path", POSTS)
def test_missing_and_null_fields_are_named(calls: Calls, scene: Scene, path: str) -> None:
    body = scene.body(path)
    for name in body:
        rest = {other: value for other, value in body.items() if other != name}
        for incomplete in (rest, {**rest, name: None}):
            assert name in assert_failure(calls.post(path, incomplete), 400, 40001)


@pytest.mark.parametrize("path", POSTS)
def test_wrong_content_types(calls: Calls, scene: Scene, path: str) -> None:
    data = json.dumps(scene.body(path))
    for content_type in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonx",
        "application",
        "json",
        "",
    ):
        assert_failure(send(calls, path, data, {"Content-Type": content_type}), 415, 41501)
    assert_failure(send(calls, path, data, {}), 415, 41501)


@pytest.mark.parametrize("path", POSTS)
def test_compressed_bodies(calls: Calls, scene: Scene, path: str) -> None:
    """Nothing is unpacked, so a bomb stays as small as it came."""
    bomb = gzip.compress(b'{"name":"' + b"a" * (64 << 20) + b'"}', compresslevel=1)
    for data in (gzip.compress(json.dumps(scene.body(path)).encode()), bomb):
        assert_failure(send(calls, path, data, GZIP), 415, 41501)


@pytest.mark.parametrize("path", POSTS)
def test_query_parameters_on_a_post(calls: Calls, scene: Scene, path: str) -> None:
    assert_failure(calls.post(f"{path}?dry_run=1", scene.body(path)), 400, 40001)


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_over_the_limit(calls: Calls, path: str, chunked: bool) -> None:
    megabyte = b"a" * (1 << 20)

    def chunks() -> Iterator[bytes]:
        yield b'{"name":"'
        for _ in range(9):
            yield megabyte

    data: Any = chunks() if chunked else b'{"name":"' + megabyte * 9
    # nginx reads on for a while after it has refused, so that a client which is still sending gets the answer.
    answer = requests.post(calls.url + path, data=data, headers=JSON, timeout=15)
    assert_failure(answer, 413, 41301)


# ---- numbers ----

INTEGERS = [
    ("/topics", "partitions"),
    ("/topics", "replication"),
    ("/topics", "retention_ms"),
    ("/topics", "retention_bytes"),
    ("/consumer/register", "partition_id"),
    ("/producer/produce", "producer_id"),
    ("/producer/produce", "partition_id"),
]
NOT_AN_INTEGER = ["true", '"5"', "-1", str(1 << 63), "1.5", "1e400", "[]", "{}", "NaN", "Infinity", "01", "0x1", "--1"]


@pytest.mark.parametrize("literal", [*NOT_AN_INTEGER, FIVE_THOUSAND_DIGITS], ids=[*NOT_AN_INTEGER, "5,000 digits"])
@pytest.mark.parametrize(("path", "field"), INTEGERS)
def test_numbers(calls: Calls, scene: Scene, path: str, field: str, literal: str) -> None:
    assert_failure(send(calls, path, with_literal(scene.body(path), field, literal)), 400, 40001)


@pytest.mark.parametrize("field", ["offset", "timestamp"])
@pytest.mark.parametrize("literal", [*NOT_AN_INTEGER, FIVE_THOUSAND_DIGITS], ids=[*NOT_AN_INTEGER, "5,000 digits"])
def test_numbers_inside_from(calls: Calls, scene: Scene, field: str, literal: str) -> None:
    body = {**scene.body("/consumer/register"), "partition_id": 0}
    assert_failure(
        send(calls, "/consumer/register", with_literal(body, "from", f'{{"{field}": {literal}}}')), 400, 40001
    )


@pytest.mark.parametrize("partitions", [0, -1, 257, 10**9])
def test_numbers_of_partitions(calls: Calls, partitions: int) -> None:
    message = assert_failure(calls.create_topic(REFUSED, partitions=partitions), 400, 40001)
    assert "partitions" in message


@pytest.mark.parametrize(
    "value",
    ["", "true", "5x", "-1", "1.5", "1e3", "0x1", " 5", "+5", "1_0", "１", "null", "[]", str(1 << 63), "9" * 5000],
    ids=lambda value: value if len(value) < 30 else "5,000 digits",
)
@pytest.mark.parametrize("path", QUERIES)
def test_numbers_in_queries(calls: Calls, scene: Scene, path: str, value: str) -> None:
    names = {"consumer_id"} | ({"partition_id", "wait_ms"} if path == "/consumer/consume" else set())
    for name in names - ({"wait_ms"} if value == str(1 << 63) else set()):  # a long wait is cut, not refused
        message = assert_failure(calls.get(path, None, **{**scene.query(), name: value}), 400, 40001, outcome=None)
        assert name in message


def test_wait_beyond_the_limit_is_clamped(calls: Calls, scene: Scene) -> None:
    consumer = calls.consumer(scene.topic, **{"from": "earliest"})
    assert calls.consume(scene.topic, consumer, wait_ms=10**9).status_code == 200


def test_ids_that_nobody_has(calls: Calls, scene: Scene) -> None:
    largest = (1 << 31) - 1
    assert_failure(calls.produce(scene.topic, largest, "x"), 404, 40404, "Producer not found")
    assert_failure(calls.consume(scene.topic, largest), 404, 40403, "Consumer not found", outcome=None)
    assert_failure(calls.produce(scene.topic, largest + 1, "x"), 400, 40001)


# ---- names ----

BAD_NAMES = [
    "",
    "a" * 201,
    "a" * 250,
    ".",
    "..",
    "a/b",
    "../a",
    "%2e%2e%2f",
    "a\x00b",
    "a\n",
    " a",
    "ä",
    "😀",
    "'; DROP TABLE topic;--",
    '"quoted"',
    "{{7*7}}",
    "${jndi:x}",
    "__consumer_offsets",
]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("path", POSTS)
def test_topic_names_in_bodies(calls: Calls, scene: Scene, path: str, name: str) -> None:
    field = "name" if path == "/topics" else "topic"
    assert field in assert_failure(calls.post(path, {**scene.body(path), field: name}), 400, 40001)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_topic_names_in_queries(calls: Calls, scene: Scene, name: str) -> None:
    for path in QUERIES:
        message = assert_failure(calls.get(path, None, **{**scene.query(), "topic": name}), 400, 40001, outcome=None)
        assert "topic" in message


@pytest.mark.parametrize("name", [name for name in BAD_NAMES if name not in (".", "..")])  # clients resolve those
def test_topic_names_in_paths(calls: Calls, name: str) -> None:
    """A name with a slash, or none at all, is another path."""
    answer = calls.get(f"/topics/{quote(name, safe='')}/partitions")
    if answer.status_code == 404:
        assert name == "" or "/" in name
        assert_failure(answer, 404, 40400, "no such path", outcome=None)
    else:
        assert_failure(answer, 400, 40001, outcome=None)


@pytest.mark.parametrize("name", ["", "a" * 201, "a\x00b", "\x00", "tab\t", 5, True, [], {}])
def test_client_names(calls: Calls, scene: Scene, name: object) -> None:
    for path in ("/producer/register", "/consumer/register"):
        assert "name" in assert_failure(calls.post(path, {**scene.body(path), "name": name}), 400, 40001)


@pytest.mark.parametrize("path", ["/producer/register", "/consumer/register"])
def test_half_a_surrogate_is_no_text(calls: Calls, scene: Scene, path: str) -> None:
    assert_failure(send(calls, path, with_literal(scene.body(path), "name", '"\\ud800"')), 400, 40001)


# ---- messages, keys, starts ----


@pytest.mark.parametrize(
    "value",
    [
        5,
        True,
        [],
        ["x"],
        {},
        {"base64": "***"},
        {"base64": "YQ"},
        {"base64": "YQ=="[:-1]},
        {"base64": "_-_-"},
        {"base64": 5},
        {"base64": None},
        {"base64": "YQ==", "more": 1},
        {"hex": "00"},
    ],
    ids=repr,
)
@pytest.mark.parametrize("field", ["message", "key"])
def test_messages_and_keys(calls: Calls, scene: Scene, field: str, value: object) -> None:
    body = {**scene.body("/producer/produce"), field: value}
    assert field in assert_failure(calls.post("/producer/produce", body), 400, 40001)


def test_messages_and_keys_over_the_limit(calls: Calls, scene: Scene) -> None:
    assert_failure(calls.produce(scene.topic, scene.producer, "a" * (MAX_MESSAGE_BYTES + 1)), 413, 41301)
    assert_failure(calls.produce(scene.topic, scene.producer, "x", key="k" * (MAX_KEY_BYTES + 1)), 413, 41301)
    many_bytes = "ä" * (MAX_MESSAGE_BYTES // 2 + 1)
    assert_failure(calls.produce(scene.topic, scene.producer, many_bytes), 413, 41301)


def test_the_largest_message_goes_through(calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    message, key = "ä" * (MAX_MESSAGE_BYTES // 2), "k" * MAX_KEY_BYTES
    calls.sent(topic_name, producer, message, key=key)
    read = calls.drained(topic_name, consumer)
    assert [(m["message"], m["key"]) for m in read] == [(message, key)]


@pytest.mark.parametrize(
    "start", ["now", "", None, 5, True, [], {}, {"offset": 0, "timestamp": 0}, {"offset": None}, {"time": 1}], ids=repr
)
def test_starts(calls: Calls, scene: Scene, start: object) -> None:
    body = {**scene.body("/consumer/register"), "partition_id": 0, "from": start}
    assert "from" in assert_failure(calls.post("/consumer/register", body), 400, 40001)


# ---- queries ----


@pytest.mark.parametrize("path", ["/topics", "/topics/bad-input/partitions", *QUERIES])
def test_unknown_query_parameters_are_named(calls: Calls, scene: Scene, path: str) -> None:
    query = scene.query() if path in QUERIES else {}
    message = assert_failure(calls.get(path, None, **{**query, "colour": "red"}), 400, 40001, outcome=None)
    assert "colour" in message


@pytest.mark.parametrize("path", QUERIES)
def test_query_parameters_missing_or_twice(calls: Calls, scene: Scene, path: str) -> None:
    for name in ("topic", "consumer_id"):
        rest = {other: value for other, value in scene.query().items() if other != name}
        assert name in assert_failure(calls.get(path, None, **rest), 400, 40001, outcome=None)
    twice = f"{path}?topic={scene.topic}&consumer_id=0&consumer_id=1"
    assert "consumer_id" in assert_failure(calls.get(twice), 400, 40001, outcome=None)


@pytest.mark.parametrize("path", ["/topics", *QUERIES])
def test_bodies_on_a_get(calls: Calls, scene: Scene, path: str) -> None:
    query = scene.query() if path in QUERIES else {}
    answer = requests.get(calls.url + path, params=query, json={"x": 1}, timeout=10)
    assert_failure(answer, 400, 40001, outcome=None)


# ---- one name, many at once ----


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_twenty_registrations_of_one_name(calls: Calls, topic_name: str, kind: str) -> None:
    calls.topic(topic_name)
    body = {"topic": topic_name, "name": "the one"}
    with ThreadPoolExecutor(20) as pool:
        answers = list(
            pool.map(
                lambda _: requests.post(f"{calls.url}/{kind}/register", json=body, timeout=15),
                range(20),
            )
        )
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len({answer.json()[f"{kind}_id"] for answer in answers}) == 1


def test_twenty_creations_of_one_topic(calls: Calls, topic_name: str) -> None:
    with ThreadPoolExecutor(20) as pool:
        answers = list(
            pool.map(
                lambda _: requests.post(f"{calls.url}/topics", json={"name": topic_name, "partitions": 1}, timeout=15),
                range(20),
            )
        )
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 19


def test_every_route_of_the_simple_api_was_tried() -> None:
    """A new route must get its rows here."""
    tried = {*POSTS, *QUERIES, "/topics/{topic}/partitions"}
    assert {route.path for route in SIMPLE_API} == tried
