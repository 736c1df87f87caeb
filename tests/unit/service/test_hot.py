"""Hot routes: found by method and path, errors and limits as everywhere else."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import BaseModel, ConfigDict

from myqueue.protocol.errors import InvalidRequest, MyQueueError, Overloaded, UnsupportedMediaType
from service.body_budget import BodyBudget
from service.hot import HotAnswer, HotRequest, HotRoutes
from service.listener import Bridge
from service.request_metrics import RequestMetrics

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
        self.status, self.headers, self.body = status, dict(headers), body

    @property
    def error_code(self) -> int:
        code: int = json.loads(self.body)["error_code"]
        return code


class Place:
    """A listener's inside without the listener."""

    def __init__(self, *, gate: MyQueueError | None = None, max_open: int = 9, max_open_body_bytes: int = 900) -> None:
        self.registry = CollectorRegistry()
        self.hot = HotRoutes(LOG, RequestMetrics(self.registry), secret="x" * 16, gate=lambda: gate)
        self.bridge = Bridge(self.hot, max_body_bytes=100, max_open=max_open, bodies=BodyBudget(max_open_body_bytes))

    async def ask(self, method: str, path: str, body: bytes = b"", **given: str) -> Answers:
        scope = Scope(method, path, body, **given)
        answers = Answers(scope)
        await self.bridge(scope, answers)
        return answers


async def echo(request: HotRequest) -> HotAnswer:
    return HotAnswer.json({"path": dict(request.path_values), "body": request.body.decode()})


async def broken(_request: HotRequest) -> HotAnswer:
    raise ValueError("a defect")


async def refusing(_request: HotRequest) -> HotAnswer:
    raise Overloaded(outcome="unknown")


def test_routes_and_errors() -> None:
    async def play() -> None:
        place = Place()
        place.hot.add("echo", "POST", "/a/{one}/b/{two}.x", echo)
        place.hot.add("read", "GET", "/a/{one}/b/{two}.x", echo, head=True)
        place.hot.add("inside", "GET", "/inside", echo, inside=True)
        place.hot.add("broken", "GET", "/broken", broken)
        place.hot.add("refusing", "GET", "/refusing", refusing)
        found = await place.ask("POST", "/a/1/b/2.x", b"hello")
        assert (found.status, found.headers["x-request-id"]) == (200, "r-1")
        assert json.loads(found.body) == {"path": {"one": "1", "two": "2"}, "body": "hello"}
        assert (await place.ask("POST", "/a/1/b/2.x/", b"hello")).status == 200
        head = await place.ask("HEAD", "/a/1/b/2.x")
        assert (head.status, head.body) == (200, b"")
        for method, path, status, code in (
            ("GET", "/a/1/b/2yx", 404, 40400),
            ("GET", "/a/1/1/b/2.x", 404, 40400),
            ("PUT", "/a/1/b/2.x", 405, 40500),
            ("GET", "/inside", 401, 40101),
            ("GET", "/broken", 500, 50001),
            ("GET", "/refusing", 503, 50305),
        ):
            answer = await place.ask(method, path)
            assert (answer.status, answer.error_code) == (status, code), path
            assert answer.headers["x-request-id"] == "r-1"
        assert "outcome" not in json.loads((await place.ask("GET", "/refusing")).body)  # nothing was to be written
        assert (await place.ask("GET", "/inside", b"", **{"x-myqueue-secret": "x" * 16})).status == 200
        counted = generate_latest(place.registry).decode()
        assert 'myqueue_http_requests_total{method="GET",route="refusing",status="503"} 2.0' in counted

    asyncio.run(play())


def test_a_client_that_hangs_up() -> None:
    async def play() -> int:
        place = Place()

        async def wait(request: HotRequest) -> HotAnswer:
            await request.gone()
            return HotAnswer.empty()

        place.hot.add("wait", "GET", "/", wait)
        return (await place.ask("GET", "/")).status

    assert asyncio.run(play()) == 204


def test_a_closed_gate() -> None:
    async def play() -> int:
        place = Place(gate=Overloaded("not yet"))
        place.hot.add("echo", "GET", "/", echo)
        return (await place.ask("GET", "/")).status

    assert asyncio.run(play()) == 503


def test_limits() -> None:
    async def play() -> None:
        place = Place(max_open=3, max_open_body_bytes=150)
        go = asyncio.Event()

        async def wait(_request: HotRequest) -> HotAnswer:
            await go.wait()
            return HotAnswer.empty()

        place.hot.add("wait", "POST", "/", wait)
        place.hot.on_stop(go.set)
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
        assert not await place.bridge.drain(0.01)
        place.bridge.wake()
        assert await place.bridge.drain(5)
        assert place.hot.stopping
        assert [(await task).status for task in (first, *more)] == [204] * 3
        assert (await place.ask("POST", "/", bytes(100))).status == 204  # all of it is free again

    asyncio.run(play())


def test_parsing() -> None:
    class Asked(BaseModel):
        model_config = ConfigDict(extra="forbid")
        number: int

    def request(query: str = "", body: bytes = b"", **given: Any) -> HotRequest:
        return HotRequest("GET", "/", {}, query, given, body, None)

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
