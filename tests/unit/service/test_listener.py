"""A real listener with Flask and routes on the event loop: health under load, one limit for the memory of bodies."""

import asyncio
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry

from myqueue.protocol.errors import MyQueueError, Overloaded
from myqueue.protocol.routes import Route
from service.body_budget import BodyBudget
from service.flask_app import FlaskApp
from service.http_app import HttpApp
from service.http_messages import HttpRequest, HttpResponse
from service.listener import Listener
from service.operations import Readiness, add_operations
from service.request_observer import RequestObserver
from service.router import Router
from stack.local import free_port
from tests.waiting import until

LOG = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
WITHIN_S = 10.0
MAX_BODY_BYTES = 1000
HEALTHY = {"status": "success", "service": "test", "checks": {}}


class Blocked:
    """Routes whose handlers end when the test says so, one in Flask and one on the event loop."""

    def __init__(self, gate: Callable[[], MyQueueError | None] = lambda: None, *, threads: int = 4) -> None:
        self.go = threading.Event()
        self.entered = threading.Semaphore(0)
        registry = CollectorRegistry()
        self.router = Router(
            LOG, RequestObserver(registry, LOG), flask_app=FlaskApp("test", threads=threads), gate=gate
        )
        add_operations(self.router, "test", Readiness({}), registry)
        self.router.add(Route("get", "GET", "/thread", "read", ""), self._wait_on_thread)
        self.router.add(Route("post", "POST", "/thread", "read", ""), self._wait_on_thread)
        self.router.add(Route("loop", "POST", "/loop", "read", ""), self._wait_on_loop)

    def _wait_on_thread(self, _request: HttpRequest) -> HttpResponse:
        self.entered.release()
        assert self.go.wait(WITHIN_S)
        return HttpResponse.json({"status": "success"})

    async def _wait_on_loop(self, _request: HttpRequest) -> HttpResponse:
        self.entered.release()
        assert await asyncio.to_thread(self.go.wait, WITHIN_S)
        return HttpResponse.json({"status": "success"})

    def app(self, bodies: BodyBudget | None = None, *, max_on_loop: int = 99, max_on_threads: int = 8) -> HttpApp:
        return HttpApp(
            self.router,
            max_on_loop=max_on_loop,
            max_on_threads=max_on_threads,
            max_body_bytes=MAX_BODY_BYTES,
            bodies=bodies or BodyBudget(MAX_BODY_BYTES),
        )

    async def await_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.acquire, timeout=WITHIN_S)


@asynccontextmanager
async def listening(app: HttpApp) -> AsyncIterator[int]:
    port = free_port()
    listener = Listener(app, "127.0.0.1", port)
    listener.start()
    try:
        async with asyncio.timeout(WITHIN_S):
            while not await asyncio.to_thread(_is_open, port):
                await asyncio.sleep(0.01)
        yield port
    finally:
        assert await listener.stop(WITHIN_S)


def run(play: Callable[[], Coroutine[None, None, None]]) -> None:
    """Until the server's own threads have ended: one that is left aborts a Python that ends meanwhile."""
    before = thread_count()
    asyncio.run(play())
    until(lambda: thread_count() <= before, within_s=WITHIN_S, what="the server's threads have ended")


def thread_count() -> int:
    """Also of those that Python does not know."""
    return len(list(Path("/proc/self/task").iterdir()))


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Asked:
    """One request on a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def answer(self) -> tuple[int, bytes, bytes]:
        """Status, head in lower case, body until the server closes."""
        async with asyncio.timeout(WITHIN_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
            body = await self._reader.read()
        self.writer.close()
        return int(head.split(b" ")[1]), head, body


async def ask(port: int, method: str, path: str, head: str = "", body: bytes = b"") -> Asked:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n".encode() + body)
    await writer.drain()
    return Asked(reader, writer)


async def post(port: int, path: str, size: int) -> Asked:
    return await ask(port, "POST", path, f"Content-Length: {size}\r\n", bytes(size))


@contextmanager
def released(blocked: Blocked) -> Iterator[None]:
    try:
        yield
    finally:
        blocked.go.set()


def test_health_is_answered_while_no_thread_is_free() -> None:
    async def play() -> None:
        blocked = Blocked(threads=2)
        app = blocked.app(max_on_loop=1, max_on_threads=5)
        async with listening(app) as port:
            with released(blocked):
                asked = [await ask(port, "GET", "/thread") for _ in range(5)]
                on_loop = await post(port, "/loop", 0)
                for _ in range(3):
                    await blocked.await_entered()
                status, _, body = await (await ask(port, "GET", "/thread")).answer()
                assert (status, json.loads(body)["error_code"]) == (503, 50305), "threads and queue are full"
                assert (await (await post(port, "/loop", 0)).answer())[0] == 503, "so is the event loop"
                status, head, body = await (await ask(port, "GET", "/healthz")).answer()
                assert (status, json.loads(body)) == (200, HEALTHY)
                assert b"content-type: application/json" in head
                size = len(body)
                status, head, body = await (await ask(port, "HEAD", "/healthz")).answer()
                assert (status, body) == (200, b"")
                assert f"content-length: {size}\r\n".encode() in head
            assert {(await one.answer())[0] for one in [*asked, on_loop]} == {200}

    run(play)


@pytest.mark.parametrize("is_open", [True, False])
def test_health_needs_no_open_gate(*, is_open: bool) -> None:
    async def play() -> None:
        blocked = Blocked(lambda: None if is_open else Overloaded("still loading"))
        blocked.go.set()
        app = blocked.app()
        async with listening(app) as port:
            assert (await (await post(port, "/loop", 0)).answer())[0] == (200 if is_open else 503)
            for path in ("/healthz", "/healthz/"):
                assert (await (await ask(port, "GET", path)).answer())[0] == 200
            status, head, body = await (await post(port, "/healthz", 0)).answer()
            if is_open:
                assert (status, json.loads(body)["error_code"]) == (405, 40500)
                assert b"allow: get, head\r\n" in head

    run(play)


@pytest.mark.parametrize("path", ["/thread", "/loop"])
def test_one_limit_for_the_bodies_of_all_listeners(path: str) -> None:
    """Whichever route and listener holds the memory, the next body is refused before it is read."""

    async def play() -> None:
        blocked = Blocked()
        bodies = BodyBudget(1500)
        first, second = blocked.app(bodies), blocked.app(bodies)
        async with listening(first) as one, listening(second) as other:
            with released(blocked):
                held = await post(one, path, 1000)
                await blocked.await_entered()
                for port in (one, other):
                    for refusing in ("/thread", "/loop"):
                        status, head, body = await (await post(port, refusing, 600)).answer()
                        told = json.loads(body)
                        assert (status, told["error_code"], told["outcome"]) == (503, 50305, "not_written")
                        assert b"retry-after: 1" in head
                small = [await post(port, "/loop", 100) for port in (one, other)]
                no_body = await ask(other, "GET", "/thread")
                for _ in range(3):
                    await blocked.await_entered()
            assert {(await each.answer())[0] for each in (held, no_body, *small)} == {200}
            assert bodies.held_bytes == 0
            assert (await (await post(other, path, 1000)).answer())[0] == 200

    run(play)


@pytest.mark.parametrize("path", ["/thread", "/loop"])
def test_a_body_of_unknown_size_counts_as_the_largest_until_it_is_read(path: str) -> None:
    async def play() -> None:
        blocked = Blocked()
        bodies = BodyBudget(1500)
        app = blocked.app(bodies)
        async with listening(app) as port:
            with released(blocked):
                chunked = await ask(port, "POST", path, "Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n")
                async with asyncio.timeout(WITHIN_S):
                    while bodies.held_bytes != MAX_BODY_BYTES:
                        await asyncio.sleep(0.01)
                assert (await (await post(port, path, 600)).answer())[0] == 503
                chunked.writer.write(b"0\r\n\r\n")
                await blocked.await_entered()
                assert bodies.held_bytes == 3
                full = await post(port, path, 1000)
                await blocked.await_entered()
                assert bodies.held_bytes == 1003
            assert {(await one.answer())[0] for one in (chunked, full)} == {200}
            assert bodies.held_bytes == 0

    run(play)


def test_a_client_that_leaves_gives_back_what_its_body_held() -> None:
    async def play() -> None:
        blocked = Blocked()
        bodies = BodyBudget(1500)
        app = blocked.app(bodies)
        async with listening(app) as port:
            for path in ("/thread", "/loop"):
                gone = await ask(port, "POST", path, "Content-Length: 800\r\n", bytes(10))
                async with asyncio.timeout(WITHIN_S):
                    while bodies.held_bytes != 800:
                        await asyncio.sleep(0.01)
                    gone.writer.close()
                    while bodies.held_bytes:
                        await asyncio.sleep(0.01)

    run(play)


def test_a_listener_that_opens_late_refuses_connections_until_then() -> None:
    async def play() -> None:
        port = free_port()
        never = Listener(Blocked().app(), "127.0.0.1", port, opens_late=True)
        never.start()
        assert not await asyncio.to_thread(_is_open, port)
        assert await never.stop(WITHIN_S)
        late = Listener(Blocked().app(), "127.0.0.1", port, opens_late=True)
        late.start()
        await asyncio.sleep(0)
        assert not await asyncio.to_thread(_is_open, port)
        late.open()
        async with asyncio.timeout(WITHIN_S):
            while not await asyncio.to_thread(_is_open, port):
                await asyncio.sleep(0.01)
        assert (await (await ask(port, "GET", "/healthz")).answer())[0] == 200
        assert await late.stop(WITHIN_S)
        assert not await asyncio.to_thread(_is_open, port)

    run(play)


def test_a_listener_that_is_told_to_open_and_to_stop_at_once_does_not_listen() -> None:
    async def play() -> None:
        port = free_port()
        listener = Listener(Blocked().app(), "127.0.0.1", port, opens_late=True)
        listener.start()
        await asyncio.sleep(0)
        listener.open()
        assert await listener.stop(1)
        assert not await asyncio.to_thread(_is_open, port)

    run(play)
