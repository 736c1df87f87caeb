"""A streamed response: chunks of an async generator, written as fast as the client reads them.

A stream runs in the task of its request and costs no thread. At most the transport's buffer and one chunk of it are in
memory: the generator is asked for the next chunk when the client has read most of what was written before.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

ChunkSource = AsyncGenerator[bytes]

_LAST_CHUNK = b"0\r\n\r\n"


class ResponseStream:
    def __init__(self, transport: asyncio.Transport, chunks: ChunkSource, *, is_chunked: bool) -> None:
        """`is_chunked`: by the chunked coding of HTTP/1.1; else the end of the connection is the end of the body."""
        self._transport = transport
        self._chunks = chunks
        self._is_chunked = is_chunked
        self._task: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None  # while the client is slower than the stream
        self._ended = False
        self._gone = False

    async def send(self) -> bool:
        """False when the client has gone. Raises what the generator raises: the body is then incomplete."""
        self._task = task = asyncio.current_task()
        try:
            async with aclosing(self._chunks) as chunks:
                if not self._ended:
                    await self._copy(chunks)
        except asyncio.CancelledError:
            if task is None or not (self._ended or self._gone):
                raise
            task.uncancel()
        finally:
            self._task = None
        if self._gone:
            return False
        if self._is_chunked:
            self._transport.write(_LAST_CHUNK)
        return True

    async def _copy(self, chunks: ChunkSource) -> None:
        async for chunk in chunks:
            self._write(chunk)
            if self._writable is not None:
                await self._writable

    def _write(self, chunk: bytes) -> None:
        if not chunk:
            return  # an empty chunk would be the last one
        if self._is_chunked:
            self._transport.writelines([b"%x\r\n" % len(chunk), chunk, b"\r\n"])
        else:
            self._transport.write(chunk)

    def pause(self) -> None:
        if self._writable is None:
            self._writable = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None

    def end(self) -> None:
        """The server stops: what was written is a complete body, and the client of an endless stream comes back."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()

    def cancel(self) -> None:
        """The client has gone."""
        self._gone = True
        if self._task is not None:
            self._task.cancel()
