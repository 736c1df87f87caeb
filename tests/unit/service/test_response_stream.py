"""Streamed responses: their coding, the memory of slow clients, clients that leave, the limit, and the end."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine

import pytest
import uvloop

from service import server_connection
from service.http_messages import HttpRequest, HttpResponse
from service.server_sent_events import encode_event, event_stream
from tests.http_site import WITHIN_S, HttpSite, read_answer

BIG = b"x" * (1 << 20)


class Streams:
    """`/events` sends what the test puts, `/endless` much, `/broken` fails after its first chunk."""

    def __init__(self, *, max_streams: int = 9) -> None:
        self.site = HttpSite(max_streams=max_streams)
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.made = 0
        self.begun = 0
        self.closed = 0
        self.site.add("events", "GET", "/events", self._events)
        self.site.add("endless", "GET", "/endless", self._endless)
        self.site.add("broken", "GET", "/broken", self._broken)

    async def _events(self, _: HttpRequest) -> HttpResponse:
        async def chunks() -> AsyncGenerator[bytes]:
            self.begun += 1
            try:
                while (chunk := await self.queue.get()) is not None:
                    yield chunk
            finally:
                self.closed += 1

        return event_stream(chunks())

    async def _endless(self, _: HttpRequest) -> HttpResponse:
        async def chunks() -> AsyncGenerator[bytes]:
            try:
                while True:
                    self.made += 1
                    yield BIG
                    await asyncio.sleep(0)
            finally:
                self.closed += 1

        return event_stream(chunks())

    async def _broken(self, _: HttpRequest) -> HttpResponse:
        async def chunks() -> AsyncGenerator[bytes]:
            yield b"first"
            raise RuntimeError("broken")

        return event_stream(chunks())


def run(play: Callable[[], Coroutine[None, None, None]]) -> None:
    uvloop.run(play())


def get(path: str, version: str = "1.1", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/{version}\r\nHost: x\r\n\r\n".encode()


async def head_of(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\r\n\r\n")).decode()


async def eventually(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not done():
            await asyncio.sleep(0.01)


def test_chunks_are_sent_as_they_come_and_the_connection_is_kept() -> None:
    async def play() -> None:
        streams = Streams()
        async with streams.site.connected() as (reader, writer):
            writer.write(get("/events") + get("/events"))
            head = await head_of(reader)
            assert "transfer-encoding: chunked" in head
            assert "content-length" not in head
            assert "x-accel-buffering: no" in head
            streams.queue.put_nowait(b"one")
            assert await reader.readexactly(8) == b"3\r\none\r\n"
            streams.queue.put_nowait(b"")  # which would end the body
            streams.queue.put_nowait(b"two")
            assert await reader.readexactly(8) == b"3\r\ntwo\r\n"
            streams.queue.put_nowait(None)
            assert await reader.readexactly(5) == b"0\r\n\r\n"
            assert "200 OK" in await head_of(reader)  # the request sent ahead
            assert streams.site.app.streams == 1
        await eventually(lambda: streams.closed == 2)
        assert streams.site.app.streams == 0
        assert await streams.site.app.drain(WITHIN_S)

    run(play)


def test_without_chunked_coding_the_end_of_the_connection_ends_the_body() -> None:
    async def play() -> None:
        streams = Streams()
        async with streams.site.connected() as (reader, writer):
            writer.write(get("/events", "1.0"))
            head = await head_of(reader)
            assert "transfer-encoding" not in head
            assert "connection: close" in head
            for chunk in (b"one", b"two", None):
                streams.queue.put_nowait(chunk)
            assert await reader.read() == b"onetwo"

    run(play)


def test_head_runs_no_stream() -> None:
    async def play() -> None:
        streams = Streams()
        async with streams.site.connected() as (reader, writer):
            writer.write(get("/events", method="HEAD") + get("/missing"))
            assert "text/event-stream" in await head_of(reader)
            assert (await read_answer(reader)).status == 404
        assert (streams.begun, streams.site.app.streams) == (0, 0)

    run(play)


def test_a_client_that_does_not_read_costs_bounded_memory_and_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "SEND_TIMEOUT_S", 0.05)

    async def play() -> None:
        streams = Streams()
        async with streams.site.connected() as (reader, writer):
            writer.write(get("/endless"))
            await head_of(reader)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await eventually(lambda: streams.made > 0)
            made = streams.made
            while True:  # until nothing more is made: buffers of the socket are full
                await asyncio.sleep(0.02)
                if streams.made == made:
                    break
                made = streams.made
            assert made < 20
            async with asyncio.timeout(WITHIN_S):
                while streams.site.app.streams:
                    streams.site.connections.check_times()
                    await asyncio.sleep(0.02)
        assert streams.closed == 1
        assert streams.made <= made + 1

    run(play)


def test_a_slow_client_gets_everything() -> None:
    async def play() -> None:
        streams = Streams()
        for _ in range(8):
            streams.queue.put_nowait(BIG)
        streams.queue.put_nowait(None)
        async with streams.site.connected() as (reader, writer):
            writer.write(get("/events", "1.0"))
            await head_of(reader)
            size = 0
            while data := await reader.read(1 << 18):
                size += len(data)
                await asyncio.sleep(0.001)
            assert size == 8 * len(BIG)

    run(play)


@pytest.mark.parametrize("half", [False, True])
def test_a_stream_is_cancelled_when_its_client_goes_away(half: bool) -> None:
    async def play() -> None:
        streams = Streams()
        async with streams.site.connected() as (reader, writer):
            writer.write(get("/events"))
            await head_of(reader)
            await eventually(lambda: streams.begun == 1)
            if half:
                writer.write_eof()
            else:
                writer.close()
            await eventually(lambda: streams.closed == 1)
        assert streams.site.app.streams == 0
        assert await streams.site.app.drain(WITHIN_S)
        assert not streams.site.connections.open

    run(play)


def test_streams_beyond_the_limit_are_refused() -> None:
    async def play() -> None:
        streams = Streams(max_streams=1)
        async with streams.site.connected() as (reader, writer):
            writer.write(get("/events"))
            await head_of(reader)
            refused = await streams.site.ask("GET", "/events")
            assert (refused.status, refused.error_code, refused.headers["retry-after"]) == (503, 50305, "5")
            assert b"1 streams are open" in refused.body
        await eventually(lambda: streams.site.app.streams == 0)
        async with streams.site.connected() as (reader, writer):
            writer.write(get("/events"))
            assert "200 OK" in await head_of(reader)

    run(play)


def test_a_stream_that_fails_is_not_taken_for_complete() -> None:
    async def play() -> None:
        streams = Streams()
        async with streams.site.connected() as (reader, writer):
            writer.write(get("/broken"))
            await head_of(reader)
            body = b""
            with contextlib.suppress(ConnectionResetError):
                body = await reader.read()
            assert b"0\r\n\r\n" not in body
        assert streams.site.app.streams == 0
        assert await streams.site.app.drain(WITHIN_S)

    run(play)


def test_streams_end_cleanly_when_the_listener_stops() -> None:
    async def play() -> None:
        streams = Streams()
        async with streams.site.connected() as (reader, writer):
            writer.write(get("/events"))
            await head_of(reader)
            streams.queue.put_nowait(b"one")
            await reader.readexactly(8)
            streams.site.connections.stop()
            assert await reader.read() == b"0\r\n\r\n"
        assert streams.closed == 1
        assert await streams.site.app.drain(WITHIN_S)

    run(play)


def test_events() -> None:
    assert encode_event(b"a\nb", event=b"message", event_id=b"7") == b"id: 7\nevent: message\ndata: a\ndata: b\n\n"
    assert encode_event(b"") == b"data: \n\n"
