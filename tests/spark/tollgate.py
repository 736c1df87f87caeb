"""A gate in front of the port that counts appends on their way to the brokers, and strikes at one of them."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_CHUNK_BYTES = 1 << 16
_APPEND = b"POST /v1/brokers/"


class Tollgate:
    """`strike` is called once, at the append of that number; from then on nothing passes. The append is then either
    on its way, or with `answered` stored and answered, but the client does not know."""

    def __init__(self, url: str, strike: Callable[[], None], at: int, *, answered: bool, topic_id: object = "") -> None:
        """`topic_id`: of the appends that count; all if none is given."""
        port = urlsplit(url).port
        assert port is not None
        self._port = port
        self._strike = strike
        self._left = at
        self._answered = answered
        self._counted = str(topic_id).encode()
        self.struck = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.start_server(self._pass, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result(10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async def end() -> None:
            self._server.close()
            running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await asyncio.sleep(0)  # what was aborted is closed in the loop's next round

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        meant = asyncio.Event()  # the next answer is that of the append to strike at
        ways = [
            asyncio.ensure_future(self._carry_there(reader, there_writer, meant)),
            asyncio.ensure_future(self._carry_back(there_reader, writer, meant)),
        ]
        try:
            with suppress(asyncio.CancelledError):  # the gate is taken down
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            there_writer.transport.abort()
            writer.transport.abort()

    async def _carry_there(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, meant: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while (data := await reader.read(_CHUNK_BYTES)) and not self.struck.is_set():
                if data.startswith(_APPEND) and self._counted in data.split(b" ", 2)[1]:
                    self._left -= 1
                    if self._left == 0:
                        if not self._answered:
                            self._hit()
                            return
                        meant.set()
                writer.write(data)
                await writer.drain()

    async def _carry_back(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, meant: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while (data := await reader.read(_CHUNK_BYTES)) and not self.struck.is_set():
                if meant.is_set():
                    self._hit()
                    return
                writer.write(data)
                await writer.drain()

    def _hit(self) -> None:
        self._strike()
        self.struck.set()
