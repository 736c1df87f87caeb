"""Routes on the event loop and on threads: found by method and path, with the same errors and limits."""

import asyncio
import json
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import BaseModel, ConfigDict

from myqueue.protocol.errors import (
    ConsumerNotFound,
    DiskFull,
    InvalidRequest,
    Overloaded,
    UnsupportedMediaType,
)
from myqueue.protocol.internal import InternalRoute
from myqueue.protocol.routes import Route
from service.http_messages import HttpRequest, HttpResponse, LoopHandler, ThreadHandler
from service.request_observer import RequestObserver
from service.router import Router
from tests.collector import Defect, no_collector
from tests.http_site import LOG, WITHIN_S, HttpSite
from tests.waiting import until


def echo(request: HttpRequest) -> HttpResponse:
    body = {"path": dict(request.path_values), "query": request.query_string, "body": request.body.decode()}
    return HttpResponse.json(body | {"method": request.method, "id": request.request_id}, session_token="1-2")


def broken(_request: HttpRequest) -> HttpResponse:
    raise ValueError("a defect")


def refusing(_request: HttpRequest) -> HttpResponse:
    raise Overloaded(outcome="unknown")


def empty(_request: HttpRequest) -> HttpResponse:
    return HttpResponse.empty([("x-more", "1")])


def on_loop(handler: ThreadHandler) -> LoopHandler:
    async def handle(request: HttpRequest) -> HttpResponse:
        return handler(request)

    return handle


def on_thread(handler: ThreadHandler) -> ThreadHandler:
    return handler


@pytest.mark.parametrize("runs", [on_loop, on_thread])
def test_routes_and_errors(runs: Callable[[ThreadHandler], LoopHandler | ThreadHandler]) -> None:
    async def play() -> None:
        place = HttpSite()
        place.add("echo", "POST", "/a/{one}/b/{two}.x", runs(echo))
        place.add("read", "GET", "/a/{one}/b/{two}.x", runs(echo))
        place.add("moving", "GET", "/moving", runs(echo), head=False)
        place.router.add(InternalRoute("inside", "GET", "/inside"), runs(echo))
        place.add("broken", "GET", "/broken", runs(broken))
        place.add("refusing", "GET", "/refusing", runs(refusing))
        place.add("refusing_write", "POST", "/refusing", runs(refusing))
        place.add("empty", "GET", "/empty", runs(empty))
        found = await place.ask("POST", "/a/1/b/ä.x", b"hello")
        assert (found.status, found.headers["x-request-id"], found.headers["x-myqueue-token"]) == (200, "r-1", "1-2")
        assert found.headers["content-type"] == "application/json"
        expected = {"path": {"one": "1", "two": "ä"}, "query": "", "body": "hello", "method": "POST", "id": "r-1"}
        assert json.loads(found.body) == expected
        assert (await place.ask("POST", "/a/1/b/2.x/", b"hello")).status == 200
        head = await place.ask("HEAD", "/a/1/b/2.x")
        assert (head.status, head.body) == (200, b"")
        assert int(head.headers["content-length"]) > 0
        nothing = await place.ask("GET", "/empty")
        assert (nothing.status, nothing.headers["x-more"], nothing.headers["x-request-id"]) == (204, "1", "r-1")
        assert "content-length" not in nothing.headers
        for method, path, status, code in (
            ("GET", "/a/1/b/2yx", 404, 40400),
            ("GET", "/a/1/1/b/2.x", 404, 40400),
            ("GET", "//moving", 404, 40400),
            ("GET", "/moving//", 404, 40400),
            ("PUT", "/a/1/b/2.x", 405, 40500),
            ("GET", "/inside", 401, 40101),
            ("GET", "/broken", 500, 50001),
            ("GET", "/refusing", 503, 50305),
        ):
            answer = await place.ask(method, path)
            assert (answer.status, answer.error_code) == (status, code), path
            assert answer.headers["x-request-id"] == "r-1"
        assert (await place.ask("PUT", "/a/1/b/2.x")).headers["allow"] == "GET, HEAD, POST"
        head = await place.ask("HEAD", "/moving")
        assert (head.status, head.headers["allow"], head.body) == (405, "GET", b"")
        assert "outcome" not in json.loads((await place.ask("GET", "/refusing")).body)  # nothing was to be written
        assert json.loads((await place.ask("POST", "/refusing")).body)["outcome"] == "unknown"
        for secret, status in (("x" * 16, 200), ("x" * 15, 401), ("", 401)):
            assert (await place.ask("GET", "/inside", b"", **{"x-myqueue-secret": secret})).status == status
        counted = generate_latest(place.registry).decode()
        assert 'myqueue_http_requests_total{method="GET",route="refusing",status="503"} 2.0' in counted
        assert 'myqueue_http_requests_total{method="PUT",route="none",status="405"} 2.0' in counted
        place.router.close()

    asyncio.run(play())


def test_routes_of_other_processes() -> None:
    """A path of another process exists: only the method can be wrong there."""

    async def play() -> None:
        other = Route("other", "PUT", "/both/{name}", "write", "")
        place = HttpSite(known_routes=(other, Route("elsewhere", "GET", "/elsewhere", "write", "", head=False)))
        place.add("here", "GET", "/both/{name}", on_loop(echo))
        for method, path, status, allow in (
            ("PUT", "/both/x", 405, "GET, HEAD, PUT"),
            ("POST", "/both/x/", 405, "GET, HEAD, PUT"),
            ("POST", "/elsewhere", 405, "GET"),
            ("HEAD", "/elsewhere", 405, "GET"),
            ("GET", "/elsewhere", 404, None),
            ("GET", "/nowhere", 404, None),
        ):
            answer = await place.ask(method, path)
            assert (answer.status, answer.headers.get("allow")) == (status, allow), f"{method} {path}"

    asyncio.run(play())


def test_a_route_is_added_once_and_runs_somewhere() -> None:
    place = HttpSite()
    place.add("here", "GET", "/here/{name}", on_loop(echo))
    with pytest.raises(ValueError, match="twice"):
        place.add("again", "HEAD", "/here/{name}", on_loop(echo))
    with pytest.raises(ValueError, match="Flask"):
        Router(LOG, RequestObserver(CollectorRegistry(), LOG)).add(Route("plain", "GET", "/", "read", ""), echo)


def test_a_client_that_hangs_up() -> None:
    async def play() -> None:
        place = HttpSite()
        waiting, noticed = asyncio.Event(), asyncio.Event()

        async def wait(request: HttpRequest) -> HttpResponse:
            waiting.set()
            await request.client_disconnected()
            noticed.set()
            return HttpResponse.empty()

        place.add("wait", "GET", "/", wait)
        async with place.connected() as (_, writer):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n")  # also if it has sent something ahead
            await waiting.wait()
            assert not noticed.is_set()
            writer.close()
            await noticed.wait()
        assert await place.app.drain(WITHIN_S)

    asyncio.run(play())


def test_a_closed_gate() -> None:
    async def play() -> int:
        place = HttpSite(gate=Overloaded("not yet"))
        place.add("echo", "GET", "/", on_loop(echo))
        assert (await place.ask("GET", "/")).status == 503
        assert (await place.ask("GET", "/nothing")).status == 503
        place.router.add(Route("health", "GET", "/health", "read", ""), on_loop(echo), gated=False)
        return (await place.ask("GET", "/health")).status

    assert asyncio.run(play()) == 200


def test_limits() -> None:
    async def play() -> None:
        place = HttpSite(max_on_loop=3, max_open_body_bytes=150)
        go, entered = asyncio.Event(), asyncio.Semaphore(0)

        async def wait(_request: HttpRequest) -> HttpResponse:
            entered.release()
            await go.wait()
            return HttpResponse.empty()

        place.add("wait", "POST", "/", wait)
        place.router.on_stop(go.set)
        refused = await place.ask("POST", "/", bytes(101))
        assert (refused.status, "connection" in refused.headers) == (413, False)  # the body was read
        refused = await place.ask("POST", "/", bytes(201))
        assert (refused.status, refused.headers["connection"]) == (413, "close")
        first = asyncio.create_task(place.ask("POST", "/", bytes(100)))
        await entered.acquire()
        assert (await place.ask("POST", "/", bytes(100))).error_code == 50305  # too many bytes
        more = [asyncio.create_task(place.ask("POST", "/", b"x")) for _ in range(2)]
        for _ in more:
            await entered.acquire()
        assert (await place.ask("POST", "/", b"x")).error_code == 50305  # too many requests
        assert not await place.app.drain(0.01)
        place.app.stop()
        assert await place.app.drain(5)
        assert [(await task).status for task in (first, *more)] == [204] * 3
        assert (await place.ask("POST", "/", bytes(100))).status == 204  # all of it is free again

    asyncio.run(play())


def test_parsing() -> None:
    class Asked(BaseModel):
        model_config = ConfigDict(extra="forbid")
        number: int

    def request(query: str = "", body: bytes = b"", **given: Any) -> HttpRequest:
        return HttpRequest("GET", "/", {}, query, given, body, None)

    assert request("number=5").parse_query(Asked).number == 5
    for query in ("number=5&number=6", "number=x", "color=red&number=1", "&".join(["a=b"] * 50)):
        with pytest.raises(InvalidRequest):
            request(query).parse_query(Asked)
    with pytest.raises(InvalidRequest):
        request("number=5", b"body").parse_query(Asked)
    kind = {"content-type": "application/json; charset=utf-8"}
    assert request(body=b'{"number":5}', **kind).parse_json(Asked).number == 5
    with pytest.raises(UnsupportedMediaType):
        request(body=b'{"number":5}').parse_json(Asked)
    with pytest.raises(UnsupportedMediaType):
        request(body=b"x", **kind, **{"content-encoding": "gzip"}).parse_json(Asked)
    for query, body in (("a=1", b'{"number":5}'), ("", b"{"), ("", b'{"number":"x"}')):
        with pytest.raises(InvalidRequest):
            request(query, body, **kind).parse_json(Asked)


def test_path_values() -> None:
    def request(**values: str) -> HttpRequest:
        return HttpRequest("GET", "/", values, "", {}, b"", None)

    assert request(consumer_id="17").path_id("consumer_id", ConsumerNotFound) == 17
    for text in ("x", "-1", "1.5", "１", "9" * 20, " 1"):
        with pytest.raises(InvalidRequest, match="consumer_id: must be a number"):
            request(consumer_id=text).path_id("consumer_id", ConsumerNotFound)
    with pytest.raises(ConsumerNotFound):
        request(consumer_id=str(1 << 31)).path_id("consumer_id", ConsumerNotFound)
    assert request(topic="a.b").path_topic() == "a.b"
    with pytest.raises(InvalidRequest, match="topic: "):
        request(topic="a/b").path_topic()


def test_idempotency_keys() -> None:
    def key(**given: str) -> str | None:
        return HttpRequest(
            "GET", "/", {}, "", {name.replace("_", "-"): v for name, v in given.items()}, b"", None
        ).idempotency_key()

    assert (key(), key(idempotency_key="a key")) == (None, "a key")
    for text in ("", "ä", "a\n", "a" * 10_000):
        with pytest.raises(InvalidRequest):
            key(idempotency_key=text)


class LogLines:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})

    warning = info


def test_busy_routes_log_some_requests_and_count_the_others() -> None:
    log = LogLines()
    observer = RequestObserver(CollectorRegistry(), cast(Any, log), lines_per_second=2)

    def frequent_is_logged() -> bool:
        before = len(log.lines)
        observer.log("frequent", "GET", "/", 200, 0.1)
        return len(log.lines) > before

    for _ in range(6):
        observer.log("frequent", "GET", "/", 200, 0.1)
        observer.log_failure(Overloaded())
    early = [line for line in log.lines if line["event"] == "request"]
    assert 2 <= len(early) <= 4  # a second may begin in between
    assert 2 <= len(log.lines) - len(early) <= 4
    observer.log("rare", "DELETE", "/", 200, 0.1)
    assert log.lines[-1]["route"] == "rare", "frequent requests must not hide rare ones"
    until(frequent_is_logged, within_s=5, what="a line of the next second")
    frequent = [line for line in log.lines if line.get("route") == "frequent"]
    assert len(early) + sum(line.get("left_out", 0) for line in frequent) >= 6


def test_methods_that_clients_invent_share_a_label() -> None:
    registry = CollectorRegistry()
    observer = RequestObserver(registry, cast(Any, LogLines()))
    for number in range(20):
        observer.count("none", f"M{number}", 404, 0.1)
    observer.count("none", "PATCH", 405, 0.1)
    counted = {
        sample.labels["method"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "myqueue_http_requests_total"
    }
    assert counted == {"other": 20, "PATCH": 1}


def test_log_lines_of_unmatched_requests_carry_the_request_id() -> None:
    ids: list[object] = []

    class Lines(LogLines):
        def info(self, event: str, **fields: Any) -> None:
            super().info(event, **fields)
            ids.append(structlog.contextvars.get_contextvars().get("request_id"))

    async def play() -> None:
        place = HttpSite(log=Lines())
        place.add("echo", "GET", "/", on_loop(echo))
        for path, name in (("/nowhere", "r-1"), ("/", "r-2"), ("/nowhere", "r-3")):
            await place.ask("GET", path, b"", **{"x-request-id": name})
        assert await place.app.drain(WITHIN_S)

    asyncio.run(play())
    assert ids == ["r-1", "r-2", "r-3"]


def test_internal_routes_do_not_answer_head() -> None:
    router = Router(cast(Any, None), RequestObserver(CollectorRegistry(), cast(Any, LogLines())), secret="s")

    async def handler(_: HttpRequest) -> HttpResponse:
        return HttpResponse.empty()

    router.add(InternalRoute("inside", "GET", "/inside"), handler)
    assert router.find("GET", "/inside") is not None
    assert router.find("HEAD", "/inside") is None


@pytest.mark.parametrize("error", [DiskFull, Defect])
@pytest.mark.parametrize("runs", [on_loop, on_thread])
def test_a_refused_request_leaves_memory_with_its_answer(
    runs: Callable[[ThreadHandler], LoopHandler | ThreadHandler], error: type[Exception]
) -> None:
    raised: list[weakref.ref[Exception]] = []

    def refuse(request: HttpRequest) -> HttpResponse:
        assert request.body
        cause, refusal = Defect(), error()  # each is in a cycle with this frame
        raised.extend((weakref.ref(cause), weakref.ref(refusal)))
        try:
            raise cause
        except Defect:
            raise refusal from cause

    async def play() -> None:
        place = HttpSite()
        place.add("refuse", "POST", "/refuse", runs(refuse))
        for _ in range(3):
            assert (await place.ask("POST", "/refuse", b"body")).status >= 500
        await asyncio.to_thread(until, lambda: not any(ref() for ref in raised), within_s=WITHIN_S, what="they go")
        assert len(raised) == 6

    with no_collector():
        asyncio.run(play())
