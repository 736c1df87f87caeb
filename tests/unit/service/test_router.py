"""Routes on the event loop and on threads: found by method and path, with the same errors and limits."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import BaseModel, ConfigDict

from myqueue.protocol.errors import (
    ConsumerNotFound,
    InvalidRequest,
    MyQueueError,
    Overloaded,
    UnsupportedMediaType,
)
from myqueue.protocol.internal import InternalRoute
from myqueue.protocol.routes import Route
from service.body_budget import BodyBudget
from service.flask_app import FlaskApp
from service.http_messages import HttpRequest, HttpResponse, LoopHandler, ThreadHandler
from service.listener import RsgiApp
from service.request_observer import RequestObserver
from service.router import Router
from tests.waiting import until

LOG = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


class Scope:
    """What the server says of a request."""

    proto = "http"
    query_string = ""

    def __init__(self, method: str, path: str, body: bytes = b"", **given: str) -> None:
        self.method, self.path = method, path
        self.headers = {"x-request-id": "r-1", **({"content-length": str(len(body))} if body else {}), **given}
        self.body = body


class Answers:
    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.drained = False

    async def client_disconnect(self) -> None:
        """Hangs up at once."""

    async def __call__(self) -> bytes:
        await asyncio.sleep(0)
        return self._scope.body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await asyncio.sleep(0)
        self.drained = True
        yield self._scope.body

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        assert self.status == 0
        self.status, self.headers, self.body = status, dict(headers), body
        assert len(self.headers) == len(headers), f"a header twice: {headers}"

    @property
    def error_code(self) -> int:
        code: int = json.loads(self.body)["error_code"]
        return code


class Place:
    """A listener's inside without the listener."""

    def __init__(
        self,
        *,
        gate: MyQueueError | None = None,
        max_on_loop: int = 9,
        max_open_body_bytes: int = 900,
        known_routes: tuple[Route, ...] = (),
    ) -> None:
        self.registry = CollectorRegistry()
        self.router = Router(
            LOG,
            RequestObserver(self.registry, LOG),
            flask_app=FlaskApp("test", threads=2),
            secret="x" * 16,
            gate=lambda: gate,
            known_routes=known_routes,
        )
        self.app = RsgiApp(
            self.router,
            max_body_bytes=100,
            max_on_loop=max_on_loop,
            max_on_threads=9,
            bodies=BodyBudget(max_open_body_bytes),
        )

    def add(
        self, name: str, method: str, path: str, handler: LoopHandler | ThreadHandler, *, head: bool = True
    ) -> None:
        self.router.add(Route(name, method, path, "read", "", head=head), handler)

    async def ask(self, method: str, path: str, body: bytes = b"", **given: str) -> Answers:
        scope = Scope(method, path, body, **given)
        answers = Answers(scope)
        await self.app(scope, answers)
        return answers


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
        place = Place()
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
        assert (nothing.status, nothing.body, nothing.headers) == (204, b"", {"x-more": "1", "x-request-id": "r-1"})
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
        place = Place(known_routes=(other, Route("elsewhere", "GET", "/elsewhere", "write", "", head=False)))
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
    place = Place()
    place.add("here", "GET", "/here/{name}", on_loop(echo))
    with pytest.raises(ValueError, match="twice"):
        place.add("again", "HEAD", "/here/{name}", on_loop(echo))
    with pytest.raises(ValueError, match="Flask"):
        Router(LOG, RequestObserver(CollectorRegistry(), LOG)).add(Route("plain", "GET", "/", "read", ""), echo)


def test_a_client_that_hangs_up() -> None:
    async def play() -> int:
        place = Place()

        async def wait(request: HttpRequest) -> HttpResponse:
            await request.client_disconnected()
            return HttpResponse.empty()

        place.add("wait", "GET", "/", wait)
        return (await place.ask("GET", "/")).status

    assert asyncio.run(play()) == 204


def test_a_closed_gate() -> None:
    async def play() -> int:
        place = Place(gate=Overloaded("not yet"))
        place.add("echo", "GET", "/", on_loop(echo))
        assert (await place.ask("GET", "/")).status == 503
        assert (await place.ask("GET", "/nothing")).status == 503
        place.router.add(Route("health", "GET", "/health", "read", ""), on_loop(echo), gated=False)
        return (await place.ask("GET", "/health")).status

    assert asyncio.run(play()) == 200


def test_limits() -> None:
    async def play() -> None:
        place = Place(max_on_loop=3, max_open_body_bytes=150)
        go = asyncio.Event()

        async def wait(_request: HttpRequest) -> HttpResponse:
            await go.wait()
            return HttpResponse.empty()

        place.add("wait", "POST", "/", wait)
        place.router.on_stop(go.set)
        refused = await place.ask("POST", "/", bytes(101))
        assert (refused.status, refused.drained, "connection" in refused.headers) == (413, True, False)
        refused = await place.ask("POST", "/", bytes(201))
        assert (refused.status, refused.drained, refused.headers["connection"]) == (413, False, "close")
        first = asyncio.create_task(place.ask("POST", "/", bytes(100)))
        await asyncio.sleep(0)
        assert (await place.ask("POST", "/", bytes(100))).error_code == 50305  # too many bytes
        more = [asyncio.create_task(place.ask("POST", "/", b"x")) for _ in range(2)]
        await asyncio.sleep(0)
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
    registry = CollectorRegistry()
    router = Router(cast(Any, None), RequestObserver(registry, cast(Any, LogLines())))
    request = HttpRequest("GET", "/nowhere", {}, "", cast(Any, {}), b"", "r-1")
    assert router.respond_unmatched(request).status == 404
    assert structlog.contextvars.get_contextvars() == {"request_id": "r-1"}


def test_internal_routes_do_not_answer_head() -> None:
    router = Router(cast(Any, None), RequestObserver(CollectorRegistry(), cast(Any, LogLines())), secret="s")

    async def handler(_: HttpRequest) -> HttpResponse:
        return HttpResponse.empty()

    router.add(InternalRoute("inside", "GET", "/inside"), handler)
    assert router.find("GET", "/inside") is not None
    assert router.find("HEAD", "/inside") is None
