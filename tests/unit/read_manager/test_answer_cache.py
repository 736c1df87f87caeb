"""Encoded answers of metadata routes: one read serves many requests for a moment, but never an error."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from myqueue.protocol import http_headers
from myqueue.protocol.errors import MetadataUnavailable, MyQueueError, TopicNotFound
from read_manager import answer_cache
from read_manager.answer_cache import AnswerCache
from read_manager.metadata_cache import MetadataCache
from service.http_messages import HttpRequest, HttpResponse, LoopHandler
from tests.unit.read_manager.test_metadata_cache import Counting


class Catalog:
    """Each read is held until it is let go."""

    def __init__(self) -> None:
        self.reads = 0
        self.error: MyQueueError | None = None
        self.go = threading.Event()
        self.go.set()

    def describe(self, request: HttpRequest) -> HttpResponse:
        self.reads += 1
        number, error = self.reads, self.error
        assert self.go.wait(10)
        if error is not None:
            raise error
        return HttpResponse.json({"path": request.path, "read": number})


def get(path: str = "/topics", query: str = "", token: str | None = None) -> HttpRequest:
    headers = {} if token is None else {http_headers.TOKEN.lower(): token}
    return HttpRequest("GET", path, {}, query, headers, b"", "id")


def run(test: Callable[[LoopHandler, Catalog], Awaitable[None]]) -> None:
    async def whole() -> None:
        catalog = Catalog()
        metadata = MetadataCache(Counting())
        try:
            await test(AnswerCache(metadata).cached(catalog.describe), catalog)
        finally:
            catalog.go.set()
            metadata.stop()

    asyncio.run(whole())


async def reads_begun(catalog: Catalog, count: int) -> None:
    async with asyncio.timeout(10):
        while catalog.reads < count:
            await asyncio.sleep(0.001)


def test_one_read_serves_all_that_ask_the_same() -> None:
    async def test(respond: LoopHandler, catalog: Catalog) -> None:
        answers = await asyncio.gather(*(respond(get()) for _ in range(100)))
        assert catalog.reads == 1
        assert {answer.body for answer in answers} == {answers[0].body}
        answers[0].headers.append(("x-request-id", "of one request"))
        assert ("x-request-id", "of one request") not in answers[1].headers
        await respond(get("/topics/other"))
        await respond(get(query="x=1"))
        assert catalog.reads == 3

    run(test)


def test_an_answer_is_kept_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(respond: LoopHandler, catalog: Catalog) -> None:
        first = await respond(get())
        assert (await respond(get())).body == first.body
        monkeypatch.setattr(answer_cache, "KEPT_S", -1.0)
        assert (await respond(get())).body != first.body

    monkeypatch.setattr(answer_cache, "KEPT_S", 60.0)
    run(test)


def test_a_read_that_began_too_long_ago_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(respond: LoopHandler, catalog: Catalog) -> None:
        catalog.go.clear()
        first = asyncio.ensure_future(respond(get()))
        await reads_begun(catalog, 1)
        second = asyncio.ensure_future(respond(get()))
        await reads_begun(catalog, 2)
        catalog.go.set()
        assert (await first).body != (await second).body

    monkeypatch.setattr(answer_cache, "KEPT_S", -1.0)
    run(test)


def test_a_session_token_bypasses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(respond: LoopHandler, catalog: Catalog) -> None:
        await respond(get())
        await respond(get(token="1:200"))
        await respond(get(token="1:200"))
        assert catalog.reads == 3

    monkeypatch.setattr(answer_cache, "KEPT_S", 60.0)
    run(test)


def test_errors_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(respond: LoopHandler, catalog: Catalog) -> None:
        for path, error in (("/a", TopicNotFound()), ("/b", MetadataUnavailable())):
            catalog.error = error
            with pytest.raises(type(error)):
                await respond(get(path))
            catalog.error = None
            assert (await respond(get(path))).status == 200

    monkeypatch.setattr(answer_cache, "KEPT_S", 60.0)
    run(test)


def test_a_request_that_joins_a_read_is_not_told_that_it_found_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic may have been created after that read began, and before the request came."""

    async def test(respond: LoopHandler, catalog: Catalog) -> None:
        catalog.go.clear()
        catalog.error = TopicNotFound()
        first = asyncio.ensure_future(respond(get()))
        await reads_begun(catalog, 1)
        catalog.error = None
        second = asyncio.ensure_future(respond(get()))
        await asyncio.sleep(0)
        catalog.go.set()
        with pytest.raises(TopicNotFound):
            await first
        assert (await second).status == 200
        assert catalog.reads == 2

    monkeypatch.setattr(answer_cache, "KEPT_S", 60.0)
    run(test)
