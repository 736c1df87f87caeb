"""The HTTP load generator: keep-alive connections that send the next request after each response."""

import asyncio
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import uvloop

from benchmarks.measurement import Figure, Pace
from benchmarks.workload import CpuClock, latency_figure

CONNECTIONS = 16
DRAIN_S = 30.0


@dataclass
class Load:
    """State of all connections. `expect` must be in the body of every response."""

    requests: Sequence[bytes]
    expect: bytes
    counting: bool = False
    stopping: bool = False
    sent: int = 0
    latencies: list[float] = field(default_factory=list)
    failure: str | None = None

    def next_request(self) -> bytes:
        self.sent += 1
        return self.requests[self.sent % len(self.requests)]

    def answered(self, head: bytes, body: bytes, latency_s: float) -> None:
        if not head.startswith(b"HTTP/1.1 2") or self.expect not in body:
            self.failure = self.failure or f"answer: {(head + body)[:400]!r}"
        if self.counting:
            self.latencies.append(latency_s)


class _Connection(asyncio.Protocol):
    def __init__(self, load: Load) -> None:
        self._load = load
        self._received = b""
        self._began = 0.0
        self._last = False  # the server closes the connection after this response
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's classes do not derive from asyncio's
        self._send()

    def _send(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._load.next_request())

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = content_length(head)
        if length is None:
            self._load.failure = self._load.failure or f"no content-length: {head[:400]!r}"
        elif len(rest) < length:
            return
        else:
            self._load.answered(head, rest, time.perf_counter() - self._began)
        self._received = b""
        self._last = closes(head)
        if self._last or self._load.stopping or self._load.failure:
            self._transport.close()
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._load.stopping and not self._last:
            self._load.failure = self._load.failure or f"the server closed a connection: {exc}"
        if not self.ended.done():
            self.ended.set_result(None)


def content_length(head: bytes) -> int | None:
    value = _header(head, b"content-length")
    return None if value is None else int(value)


def closes(head: bytes) -> bool:
    """Some servers limit the requests of a connection."""
    return (_header(head, b"connection") or b"").lower() == b"close"


def _header(head: bytes, wanted: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == wanted:
            return value.strip()
    return None


def request(method: str, host: str, path: str, body: bytes | None = None, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


def exchange(connection: socket.socket, raw: bytes, expect: bytes) -> None:
    """One request and its response, which must be complete and good."""
    connection.sendall(raw)
    received = b""
    while True:
        data = connection.recv(1 << 16)
        received += data
        head, found, body = received.partition(b"\r\n\r\n")
        if not data or (found and len(body) >= (content_length(head) or 0)):
            break
    if not head.startswith(b"HTTP/1.1 2") or expect not in body:
        raise RuntimeError(f"answer: {received[:400]!r}")


def run_load(host: str, port: int, requests: Sequence[bytes], expect: bytes, pace: Pace) -> Figure:
    return uvloop.run(_run(host, port, Load(requests, expect), pace))


async def _send_repeatedly(host: str, port: int, load: Load) -> None:
    loop = asyncio.get_running_loop()
    while not load.stopping and load.failure is None:
        _, connection = await loop.create_connection(lambda: _Connection(load), host, port)
        await connection.ended


async def _run(host: str, port: int, load: Load, pace: Pace) -> Figure:
    clients = [asyncio.create_task(_send_repeatedly(host, port, load)) for _ in range(CONNECTIONS)]
    await asyncio.sleep(pace.warm_up_s)
    load.counting = True
    cpu = CpuClock(pace.servers)
    began = time.perf_counter()
    while load.failure is None and time.perf_counter() - began < pace.seconds:
        await asyncio.sleep(0.05)
    load.counting = False
    seconds = time.perf_counter() - began
    spent = cpu.details()
    load.stopping = True
    done, unfinished = await asyncio.wait(clients, timeout=DRAIN_S)
    for client in done:
        client.result()  # raises errors such as a refused connection
    if load.failure:
        raise RuntimeError(load.failure)
    if unfinished:
        raise RuntimeError(f"{len(unfinished)} requests had no answer after {DRAIN_S:.0f} s")
    latency = latency_figure(load.latencies, seconds)
    messages = len(load.latencies)
    cpu_us = sum(value for value in spent.values() if isinstance(value, float)) / messages * 1e6
    details = {**latency.details, "connections": CONNECTIONS, **spent, "cpu_us": cpu_us}
    return Figure(messages / seconds, "messages/s", seconds, messages, details)
