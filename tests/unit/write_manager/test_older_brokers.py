"""A write manager is upgraded before or after the brokers: one without the append connection gets requests."""

import asyncio
import json
from collections.abc import Coroutine
from contextlib import closing, suppress
from typing import Any

import pytest

from myqueue.protocol.append_frames import AppendedOffsets
from myqueue.protocol.errors import NotLeader
from write_manager.append_connections import AppendConnections


class OlderBroker:
    """Knows `POST /internal/append` only."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.requests: list[str] = []
        self.served: list[asyncio.Task[Any] | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.served.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError), closing(writer):
            while True:
                await self._respond((await reader.readuntil(b"\r\n\r\n")).decode(), reader, writer)

    async def _respond(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, *headers = head.strip().split("\r\n")
        self.requests.append(line.rpartition(" ")[0])
        lengths = [int(one.partition(":")[2]) for one in headers if one.lower().startswith("content-length")]
        await reader.readexactly(sum(lengths))
        body = json.dumps({"answers": [self.answer]}).encode()
        status = b"200 OK" if line.startswith("POST") else b"404 Not Found"
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))


def run(broker: OlderBroker, appends: int) -> list[AppendedOffsets]:
    async def append() -> list[AppendedOffsets]:
        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        connections = AppendConnections("secret")
        try:
            return [await connections.append(f"http://{host}:{port}", b"batch", 5.0, "id") for _ in range(appends)]
        finally:
            connections.close()
            server.close()
            await asyncio.wait([task for task in broker.served if task is not None], timeout=5)

    work: Coroutine[Any, Any, list[AppendedOffsets]] = append()
    return asyncio.run(work)


def test_its_batches_go_as_requests() -> None:
    broker = OlderBroker({"status": "success", "end_offset": 9, "results": [{"offset": 8}, {"error_code": 40903}]})
    assert run(broker, 2) == [AppendedOffsets(9, [8, -40903])] * 2
    assert broker.requests == ["GET /internal/append-connection", *["POST /internal/append"] * 2]


def test_its_refusals_are_raised() -> None:
    broker = OlderBroker({"error": NotLeader(details={"leader": 2}).to_body("id")})
    with pytest.raises(NotLeader) as raised:
        run(broker, 1)
    assert raised.value.details == {"leader": 2}
