"""The caller of the event loop against a server that does what each test says."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import structlog
import uvloop

from myqueue.protocol.errors import TopicNotFound
from service.async_calls import AsyncCaller
from service.calls import NoAnswer

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
Script = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Reads requests and hands each to the script; counts connections."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.connections = 0
        self.requests: list[bytes] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Server":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-l")),
                    0,
                )
                request = head + await reader.readexactly(length)
                self.requests.append(request)
                await self._script(request, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def answer_ok(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(OK)


def run(script: Script, test: Callable[[Server, AsyncCaller], Awaitable[None]], **options: float) -> None:
    async def main() -> None:
        caller = AsyncCaller("a secret", **options)  # type: ignore[arg-type]
        async with asyncio.timeout(10), Server(script) as server:
            await test(server, caller)
            caller.close()

    uvloop.run(main())


def test_the_request_carries_secret_id_type_and_body() -> None:
    async def test(server: Server, caller: AsyncCaller) -> None:
        structlog.contextvars.clear_contextvars()
        with structlog.contextvars.bound_contextvars(request_id="r-1"):
            assert await caller.json("POST", server.url + "/a?b=1", {"c": 2}, extra_headers={"X-More": "m"}) == {}
        await caller.call("POST", server.url + "/", b"\x00\x01", content_type="application/x", request_id="r-2")
        first, second = server.requests
        assert first.startswith(b"POST /a?b=1 HTTP/1.1\r\n")
        for line in (
            b"X-Myqueue-Secret: a secret",
            b"X-Request-Id: r-1",
            b"X-More: m",
            b"Content-Type: application/json",
        ):
            assert line + b"\r\n" in first
        assert first.endswith(b'\r\n\r\n{"c": 2}')
        assert b"X-Request-Id: r-2\r\n" in second
        assert second.endswith(b"\x00\x01")
        assert server.connections == 1, "kept open and used again"

    run(answer_ok, test)


def test_answers_in_pieces_and_without_body() -> None:
    async def script(request: bytes, writer: asyncio.StreamWriter) -> None:
        if b"/empty" in request:
            writer.write(b"HTTP/1.1 204 No Content\r\nX-End: 7\r\n\r\n")
            return
        for piece in (b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 6\r\n\r", b"\nab", b"cdef"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)

    async def test(server: Server, caller: AsyncCaller) -> None:
        assert (await caller.call("GET", server.url + "/")).body == b"abcdef"
        empty = await caller.call("GET", server.url + "/empty")
        assert (empty.status, empty.headers["x-end"], empty.json()) == (204, "7", None)

    run(script, test)


def test_errors_are_typed_by_json_and_left_alone_by_call() -> None:
    async def script(_: bytes, writer: asyncio.StreamWriter) -> None:
        body = b'{"error_code": 40401, "message": "topic not found", "outcome": "not_written"}'
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\nRetry-After: 3\r\n\r\n%s" % (len(body), body))

    async def test(server: Server, caller: AsyncCaller) -> None:
        assert (await caller.call("POST", server.url + "/")).status == 404
        with pytest.raises(TopicNotFound) as caught:
            await caller.json("POST", server.url + "/", {})
        assert caught.value.retry_after_s == 3

    run(script, test)


def test_outcomes_of_requests_without_answer() -> None:
    async def silent(_: bytes, writer: asyncio.StreamWriter) -> None:
        await writer.drain()

    async def test(server: Server, caller: AsyncCaller) -> None:
        with pytest.raises(NoAnswer, match="in time") as caught:
            await caller.json("POST", server.url + "/", {}, timeout_s=0.1)
        assert caught.value.outcome == "unknown"
        with pytest.raises(NoAnswer, match="cannot connect") as caught:
            await caller.json("POST", "http://127.0.0.1:1/", {}, timeout_s=0.5)
        assert caught.value.outcome == "not_written"

    run(silent, test)


def test_without_time_left_nothing_is_sent() -> None:
    async def test(server: Server, caller: AsyncCaller) -> None:
        with pytest.raises(NoAnswer, match="no time left") as caught:
            await caller.call("POST", server.url + "/", b"x", timeout_s=-0.1)
        assert caught.value.outcome == "not_written"
        assert server.requests == []

    run(answer_ok, test)


def test_a_place_among_the_connections_is_awaited_in_vain() -> None:
    async def silent(_: bytes, writer: asyncio.StreamWriter) -> None:
        await writer.drain()

    async def test(server: Server, caller: AsyncCaller) -> None:
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(failing(caller, server.url, 0.3))
            await asyncio.sleep(0.02)
            second = group.create_task(failing(caller, server.url, 0.1))
        assert (slow.result(), second.result()) == ("unknown", "not_written")

    run(silent, test, connections_per_host=1)


async def failing(caller: AsyncCaller, url: str, timeout_s: float) -> str | None:
    with pytest.raises(NoAnswer) as caught:
        await caller.call("POST", url, b"", timeout_s=timeout_s)
    return caught.value.outcome


def test_a_connection_the_server_closed_is_not_used_again() -> None:
    async def script(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()
        writer.close()

    async def test(server: Server, caller: AsyncCaller) -> None:
        for _ in range(3):
            assert await caller.json("POST", server.url + "/", {}) == {}
            await asyncio.sleep(0.05)
        assert server.connections == 3

    run(script, test)


def test_a_request_lost_on_a_kept_connection_is_repeated_only_if_it_changes_nothing() -> None:
    answered: list[asyncio.StreamWriter] = []

    async def script(_: bytes, writer: asyncio.StreamWriter) -> None:
        if writer in answered:
            writer.transport.abort()
            return
        answered.append(writer)
        writer.write(OK)

    async def test(server: Server, caller: AsyncCaller) -> None:
        for _ in range(2):
            assert await caller.json("GET", server.url + "/") == {}
        assert len(server.requests) == 3
        with pytest.raises(NoAnswer) as caught:
            await caller.json("POST", server.url + "/", {})
        assert caught.value.outcome == "unknown"

    run(script, test)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\nno length",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\ntoo much",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"x" * (70 << 10),
    ],
)
def test_answers_that_are_not_ours(answer: bytes) -> None:
    async def script(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async def test(server: Server, caller: AsyncCaller) -> None:
        with pytest.raises(NoAnswer, match="not one of ours") as caught:
            await caller.json("POST", server.url + "/", {})
        assert caught.value.outcome == "unknown"

    run(script, test)


def test_a_cancelled_call_leaves_no_answer_behind() -> None:
    async def script(request: bytes, writer: asyncio.StreamWriter) -> None:
        if b"/slow" in request:
            await asyncio.sleep(0.05)
        writer.write(OK)

    async def test(server: Server, caller: AsyncCaller) -> None:
        slow = asyncio.create_task(caller.call("GET", server.url + "/slow"))
        await asyncio.sleep(0.02)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert await caller.json("GET", server.url + "/") == {}
        assert server.connections == 2

    run(script, test)


def test_line_breaks_do_not_reach_the_head() -> None:
    async def test(server: Server, caller: AsyncCaller) -> None:
        with pytest.raises(ValueError, match="line breaks"):
            await caller.call("GET", server.url + "/", request_id="a\r\nX-Evil: 1")

    run(answer_ok, test)


def test_many_at_once_share_few_connections() -> None:
    async def test(server: Server, caller: AsyncCaller) -> None:
        answers = await asyncio.gather(*(caller.json("POST", server.url + "/", {"n": n}) for n in range(200)))
        assert answers == [{}] * 200
        assert server.connections <= 4

    run(answer_ok, test, connections_per_host=4)
