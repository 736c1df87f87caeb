"""Connections of our HTTP server: order, limits in time and memory, refusals that close, and the end."""

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from myqueue.protocol.routes import Route
from service import server_connection
from service.body_budget import BodyBudget
from service.http_app import HttpApp
from service.http_messages import Body, HttpRequest, HttpResponse
from service.listener import Listener
from service.server_connection import SENT_AHEAD_BYTES
from stack.local import free_port
from tests.http_site import WITHIN_S, HttpSite, read_answer
from tests.raw_http import CHUNKED, GET, POST, SMUGGLED, VECTORS, answers

MEBIBYTE = 1 << 20
BIG = 16 * MEBIBYTE  # more than the buffers of a connection hold


class Routes:
    """`/topics` records bodies, `/wait` answers when the test says so, `/big` with much."""

    def __init__(self, **options: Any) -> None:
        self.site = HttpSite(**options)
        self.bodies: list[bytes] = []
        self.sent = 0
        self.entered = asyncio.Semaphore(0)
        self.go = asyncio.Event()
        self.big: Body = b"x" * BIG
        for name, method, path, handler in (
            ("read", "GET", "/topics", self._record),
            ("write", "POST", "/topics", self._record),
            ("wait", "POST", "/wait", self._wait),
            ("big", "GET", "/big", self._answer_big),
            ("torn", "GET", "/torn", self._break_line),
            ("cancelled", "GET", "/cancelled", self._cancel),
        ):
            self.site.router.add(Route(name, method, path, "read", ""), handler)

    async def _record(self, request: HttpRequest) -> HttpResponse:
        self.bodies.append(request.body)
        return HttpResponse(200, [], request.body, self._count_sent)

    def _count_sent(self) -> None:
        self.sent += 1

    async def _wait(self, request: HttpRequest) -> HttpResponse:
        self.entered.release()
        await self.go.wait()
        return await self._record(request)

    async def _answer_big(self, _: HttpRequest) -> HttpResponse:
        self.entered.release()
        return HttpResponse(200, [], self.big)

    async def _break_line(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse(200, [("x-a", "b\r\nx-c: d")], b"")

    async def _cancel(self, _: HttpRequest) -> HttpResponse:
        raise asyncio.CancelledError

    async def check_times_until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not done():
                self.site.connections.check_times()
                await asyncio.sleep(0.01)


def run(play: Callable[[], Coroutine[None, None, None]]) -> None:
    uvloop.run(play())


def post(path: str, body: bytes, *headers: str) -> bytes:
    more = "".join(f"{line}\r\n" for line in headers)
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@pytest.mark.parametrize("name", [name for name in VECTORS if name not in ("above the root", "a long path")])
@pytest.mark.parametrize("first", [b"", post("/topics", b"before")])
def test_ambiguous_requests_are_refused_and_the_connection_closed(name: str, first: bytes) -> None:
    """Also behind a good request; nothing that follows is read as a request."""

    async def play() -> None:
        routes = Routes()
        async with routes.site.connected() as (reader, writer):
            writer.write(first + VECTORS[name] + SMUGGLED)
            *before, refused = answers(await reader.read())
        assert [answer.status for answer in before] == ([200] if first else [])
        assert (refused.status, refused.headers["connection"]) == (400, "close")
        assert (refused.json()["error_code"], refused.json()["outcome"]) == (40001, "not_written")
        assert routes.bodies == [b"before"] * bool(first)
        await routes.check_times_until(lambda: not routes.site.connections.open)
        assert await routes.site.app.drain(WITHIN_S)

    run(play)


def test_requests_sent_ahead_are_answered_in_order() -> None:
    async def play() -> None:
        routes = Routes(max_on_loop=1)
        async with routes.site.connected() as (reader, writer):
            chunked = b"POST /topics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n3\r\n0\r\n\r\n"
            ahead = post("/topics", b"2") + chunked + get("/nowhere") + post("/topics", b"4")
            writer.write(post("/wait", b"1") + ahead)
            await routes.entered.acquire()
            for byte in post("/topics", b"5"):
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert routes.bodies == []
            routes.go.set()
            found = [await read_answer(reader) for _ in range(6)]
        assert [answer.body for answer in found if answer.status == 200] == [b"1", b"2", b"3", b"4", b"5"]
        assert [answer.status for answer in found] == [200, 200, 200, 404, 200, 200]

    run(play)


@pytest.mark.parametrize(
    "first",
    [
        GET + b"Proxy-Connection: close\r\n\r\n",
        POST + CHUNKED + b"\r\n1\r\nx\r\n0\r\nConnection: close\r\n\r\n",
    ],
)
def test_a_close_that_is_not_meant_for_this_connection_ends_no_requests_behind_it(first: bytes) -> None:
    """A proxy may pass Proxy-Connection on, and send the next client's request on the same connection."""

    async def play() -> None:
        routes = Routes()
        async with routes.site.connected() as (reader, writer):
            for request in (first, get("/topics")):
                writer.write(request)
                answer = await read_answer(reader)
                assert (answer.status, answer.headers.get("connection")) == (200, None)

    run(play)


def test_what_is_sent_ahead_is_bounded() -> None:
    async def play() -> None:
        routes = Routes(max_body_bytes=BIG, max_open_body_bytes=BIG)
        async with routes.site.connected() as (reader, writer):
            writer.write(post("/wait", b""))
            await routes.entered.acquire()
            writer.write(post("/topics", b"x" * BIG))
            (connection,) = routes.site.connections.open
            await routes.check_times_until(lambda: not connection.transport.is_reading())
            unread = writer.transport.get_write_buffer_size()
            assert unread > BIG - MEBIBYTE - SENT_AHEAD_BYTES
            assert routes.site.app.bodies.held_bytes == 0
            routes.go.set()
            assert [(await read_answer(reader)).status for _ in range(2)] == [200, 200]
        assert [len(body) for body in routes.bodies] == [0, BIG]

    run(play)


def test_answers_do_not_let_more_be_sent_ahead() -> None:
    """A client that sends small requests for ever: each answer makes room for one of them, not for another read."""

    async def play() -> None:
        routes = Routes()
        async with routes.site.connected() as (reader, writer):
            writer.write(post("/wait", b""))
            await routes.entered.acquire()
            ahead = get("/topics") * 200 + post("/wait", b"")
            writer.write(ahead + get("/topics") * (BIG // len(get("/topics"))))
            (connection,) = routes.site.connections.open
            await routes.check_times_until(lambda: not connection.transport.is_reading())
            routes.go.set()
            routes.go.clear()
            await routes.entered.acquire()
            assert [(await read_answer(reader)).status for _ in range(201)] == [200] * 201
            await routes.check_times_until(lambda: not connection.transport.is_reading())
            assert writer.transport.get_write_buffer_size() > BIG - MEBIBYTE - SENT_AHEAD_BYTES

    run(play)


@pytest.mark.parametrize("begun", [b"POST /topics HT", post("/topics", b"x" * 50)[:-1], get("/nowhere")[:-1]])
def test_slow_heads_and_bodies_are_cut_off(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        routes = Routes()
        async with routes.site.connected() as (reader, writer), routes.site.connected() as (_, other):
            other.write(b"\r\n")  # not even a request line
            writer.write(post("/topics", b"x"))
            assert (await read_answer(reader)).status == 200
            writer.write(begun)
            await routes.check_times_until(lambda: not routes.site.connections.open)
            (answer,) = answers(await reader.read())
        assert (answer.status, answer.json()["error_code"], answer.headers["connection"]) == (408, 40800, "close")
        assert answer.json()["outcome"] == "not_written"
        assert routes.site.app.bodies.held_bytes == 0
        assert routes.site.app.unanswered == 0

    monkeypatch.setattr(server_connection, "HEAD_TIMEOUT_S", 0.1)
    monkeypatch.setattr(server_connection, "BODY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(server_connection, "LINGER_S", 0.1)
    run(play)


def test_idle_connections_are_closed_and_busy_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        routes = Routes()
        connections = routes.site.connections
        async with routes.site.connected() as (idle, _), routes.site.connected() as (busy, writer):
            writer.write(post("/wait", b"x"))
            await routes.entered.acquire()
            await routes.check_times_until(lambda: len(connections.open) == 1)
            assert await idle.read() == b""
            routes.go.set()
            assert (await read_answer(busy)).status == 200
            await routes.check_times_until(lambda: not connections.open)
            assert await busy.read() == b""

    monkeypatch.setattr(server_connection, "IDLE_TIMEOUT_S", 0.1)
    run(play)


def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next request waits, and once nothing more can be sent for a while the answer's memory is free again."""

    async def play() -> None:
        routes = Routes()
        async with routes.site.connected() as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(get("/big") + get("/big"))
            await routes.entered.acquire()
            await routes.check_times_until(lambda: not routes.site.connections.open)
            assert routes.entered.locked(), "the second request was not run"

    monkeypatch.setattr(server_connection, "SEND_TIMEOUT_S", 0.2)
    run(play)


def test_a_client_that_reads_late_gets_all_of_it() -> None:
    async def play() -> None:
        routes = Routes()
        part = b"abcdefgh" * 1000
        bodies: list[Body] = [
            [memoryview(part), part, b"", memoryview(part * 200)[1:]],
            [b"a", memoryview(b"b")],
            [],
            b"",
        ]
        for answer in bodies:
            routes.big = answer
            async with routes.site.connected() as (reader, writer):
                writer.write(get("/big") + b"HEAD /big HTTP/1.1\r\nHost: x\r\n\r\n" + get("/big"))
                await routes.entered.acquire()
                whole = b"".join(answer) if isinstance(answer, list) else answer
                assert (await read_answer(reader)).body == whole
                assert (await read_answer(reader, is_head=True)).headers["content-length"] == str(len(whole))
                assert (await read_answer(reader)).body == whole

    run(play)


def test_what_ends_a_connection() -> None:
    async def play() -> None:
        routes = Routes()
        for data, expected in (
            (post("/topics", b"1", "Connection: close") + SMUGGLED, [b"1"]),
            (post("/topics", b"2").replace(b"HTTP/1.1", b"HTTP/1.0") + SMUGGLED, [b"2"]),
            (post("/topics", b"3") + b"POST", [b"3"]),
        ):
            async with routes.site.connected() as (reader, writer):
                writer.write(data)
                writer.write_eof()  # a client that only ends its own side still gets its answer
                assert [answer.body for answer in answers(await reader.read())] == expected
        assert routes.bodies == [b"1", b"2", b"3"]

    run(play)


def test_expect_continue() -> None:
    async def play() -> None:
        routes = Routes()
        async with routes.site.connected() as (reader, writer):
            data = post("/topics", b"abc", "Expect: 100-continue")
            writer.write(data[:-3])
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc" + data)
            assert [(await read_answer(reader)).body for _ in range(2)] == [b"abc", b"abc"]
            writer.write(post("/topics", b"x" * 101, "Expect: 100-continue")[:-101])
            refused = await read_answer(reader)
            assert (refused.status, refused.headers["connection"]) == (413, "close")

    run(play)


def test_bodies_over_the_limit_of_unknown_size() -> None:
    async def play() -> None:
        routes = Routes()
        async with routes.site.connected() as (reader, writer):
            writer.write(b"POST /topics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b"40\r\n" + b"x" * 64 + b"\r\n40\r\n" + b"x" * 64 + b"\r\n" + b"1000000\r\n" + b"x" * BIG)
            (refused,) = answers(await reader.read())
            assert (refused.status, refused.headers["connection"]) == (413, "close")
            await writer.drain()  # the rest is read, so that the client gets to its answer
        assert routes.bodies == []
        assert routes.site.app.bodies.held_bytes == 0

    run(play)


def test_an_answer_that_was_not_sent_does_not_count_as_sent() -> None:
    async def play() -> None:
        routes = Routes()
        async with routes.site.connected() as (_, writer):
            writer.write(post("/wait", b"x"))
            await routes.entered.acquire()
            writer.transport.abort()
            (connection,) = routes.site.connections.open
            async with asyncio.timeout(WITHIN_S):
                await connection.disconnected()
                while routes.site.connections.open:  # the answer to a client that has gone
                    routes.go.set()
                    await asyncio.sleep(0.01)
        assert await routes.site.app.drain(WITHIN_S)
        async with routes.site.connected() as (reader, writer):
            writer.write(post("/topics", b"y"))
            await read_answer(reader)
        assert (routes.bodies, routes.sent) == ([b"x", b"y"], 1)

    run(play)


def test_a_line_break_in_a_header_is_not_sent() -> None:
    async def play() -> None:
        answer = await Routes().site.ask("GET", "/torn")
        assert (answer.status, "x-c" in answer.headers) == (500, False)

    run(play)


def test_a_cancelled_handler_holds_nothing() -> None:
    async def play() -> None:
        routes = Routes(max_on_loop=1)
        for _ in range(2):
            async with routes.site.connected() as (reader, writer):
                writer.write(get("/cancelled"))
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await read_answer(reader)
        assert (await routes.site.ask("GET", "/topics")).status == 200
        assert await routes.site.app.drain(WITHIN_S)

    run(play)


def test_stopping() -> None:
    """Idle connections close, requests in flight are answered with `Connection: close`, late ones not at all."""

    async def play() -> None:
        routes = Routes()
        port = free_port()
        listener = Listener(routes.site.app, "127.0.0.1", port)
        listener.start()
        idle, busy = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        idle[1].write(post("/topics", b"idle"))
        assert (await read_answer(idle[0])).status == 200
        busy[1].write(post("/wait", b"busy") + post("/topics", b"late"))
        async with asyncio.timeout(WITHIN_S):
            await routes.entered.acquire()
            stopping = asyncio.create_task(listener.stop(WITHIN_S))
            assert await idle[0].read() == b""
            with pytest.raises(OSError, match=r"refused|reset"):
                await asyncio.open_connection("127.0.0.1", port)
            routes.go.set()
            (answer,) = answers(await busy[0].read())
            assert await stopping
        assert (answer.body, answer.headers["connection"]) == (b"busy", "close")
        for _, writer in (idle, busy):
            writer.close()

    run(play)


def test_a_request_in_flight_for_too_long_does_not_stop_the_stop() -> None:
    async def play() -> None:
        routes = Routes()
        port = free_port()
        listener = Listener(routes.site.app, "127.0.0.1", port)
        listener.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post("/wait", b"x"))
        await routes.entered.acquire()
        assert not await listener.stop(0.05)
        assert await reader.read() == b""
        routes.go.set()
        assert await routes.site.app.drain(WITHIN_S)
        writer.close()

    run(play)


def test_a_port_belongs_to_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    async def play() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            app = HttpApp(HttpSite().router, max_body_bytes=1, bodies=BodyBudget(1))
            with pytest.raises(SystemExit) as stopped:
                Listener(app, "127.0.0.1", port).start()
            assert stopped.value.code == 2
            assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err

    run(play)


def test_a_refusal_carries_the_request_id() -> None:
    async def play() -> None:
        answer = await Routes().site.ask("POST", "/topics", b"x" * 101)
        assert (answer.status, json.loads(answer.body)["request_id"]) == (413, "r-1")

    run(play)
