"""An internal route that hands its connection over to another protocol."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import cast

import pytest
import structlog
import uvloop
from prometheus_client import CollectorRegistry

from myqueue.protocol.errors import MyQueueError, Overloaded
from myqueue.protocol.internal import InternalRoute
from service.body_budget import BodyBudget
from service.http_app import HttpApp
from service.http_messages import HttpRequest
from service.listener import Listener
from service.request_observer import RequestObserver
from service.router import Router
from stack.local import free_port

LOG = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
WITHIN_S = 10.0
SECRET = "X-Myqueue-Secret: " + "s" * 16 + "\r\n"
UPGRADE = "Connection: Upgrade\r\nUpgrade: frames\r\n"


class Echo(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())


class ClosesItself(Echo):
    def close(self) -> None:
        self.transport.write(b"bye")
        self.transport.close()


class Site:
    def __init__(self, protocol: type[Echo]) -> None:
        self.closed: MyQueueError | None = None
        self.made: list[HttpRequest] = []
        router = Router(LOG, RequestObserver(CollectorRegistry(), LOG), secret="s" * 16, gate=lambda: self.closed)

        def factory(request: HttpRequest) -> asyncio.Protocol:
            if request.header("x-full"):
                raise Overloaded()
            self.made.append(request)
            return protocol()

        router.add_upgrade(InternalRoute("frames", "POST", "/internal/frames"), factory)
        self.port = free_port()
        app = HttpApp(router, max_body_bytes=1000, bodies=BodyBudget(1000), max_on_loop=2)
        self.listener = Listener(app, "127.0.0.1", self.port)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            async with asyncio.timeout(WITHIN_S):
                yield reader, writer
        finally:
            writer.close()


def request(*headers: str, after: bytes = b"") -> bytes:
    return f"POST /internal/frames HTTP/1.1\r\nHost: x\r\n{''.join(headers)}\r\n".encode() + after


async def head_of(reader: asyncio.StreamReader) -> bytes:
    return (await reader.readuntil(b"\r\n\r\n")).lower()


def run(play: Callable[[Site], Coroutine[None, None, None]], protocol: type[Echo] = Echo) -> None:
    async def main() -> None:
        site = Site(protocol)
        serving = site.listener.start()
        await asyncio.sleep(0)
        try:
            await play(site)
        finally:
            assert await site.listener.stop(WITHIN_S)
        assert serving.done()

    uvloop.run(main())


@pytest.mark.parametrize("ahead", [b"", b"abc"])
def test_the_connection_is_handed_over(ahead: bytes) -> None:
    """With the bytes that came behind the request."""

    async def play(site: Site) -> None:
        for _ in range(3):  # a handed over connection does not count as a request in flight
            async with site.connected() as (reader, writer):
                writer.write(request(SECRET, UPGRADE, after=ahead))
                head = await head_of(reader)
                assert head.startswith(b"http/1.1 101 ")
                assert b"upgrade: frames\r\n" in head
                assert b"connection: upgrade\r\n" in head
                writer.write(b"def")
                assert await reader.readexactly(len(ahead) + 3) == (ahead + b"def").upper()
        assert [one.header("upgrade") for one in site.made] == ["frames"] * 3

    run(play)


def test_refusals() -> None:
    async def play(site: Site) -> None:
        for headers, status in (
            ((UPGRADE,), b"401"),
            ((SECRET,), b"400"),
            ((SECRET, "Upgrade: frames\r\n"), b"400"),
            ((SECRET, UPGRADE, "X-Full: 1\r\n"), b"503"),
        ):
            async with site.connected() as (reader, writer):
                writer.write(request(*headers))
                assert (await head_of(reader)).split(b" ")[1] == status
        async with site.connected() as (reader, writer):
            writer.write(request(SECRET, UPGRADE, "Content-Length: 5\r\n", after=b"abcde"))
            assert (await head_of(reader)).split(b" ")[1] == b"400"
        site.closed = Overloaded("still loading")
        async with site.connected() as (reader, writer):
            writer.write(request(SECRET, UPGRADE))
            assert (await head_of(reader)).split(b" ")[1] == b"503"
        assert site.made == []

    run(play)


@pytest.mark.parametrize(("protocol", "last"), [(Echo, b""), (ClosesItself, b"bye")])
def test_a_stopping_listener_closes_upgraded_connections(protocol: type[Echo], last: bytes) -> None:
    async def play(site: Site) -> None:
        async with site.connected() as (reader, writer):
            writer.write(request(SECRET, UPGRADE))
            await head_of(reader)
            stopping = asyncio.create_task(site.listener.stop(WITHIN_S))
            assert await reader.read() == last
            assert await stopping

    run(play, protocol)
