"""Fetches in flight: a connection each. An application's thread waits for all of them with one selector."""

import math
import selectors
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from myqueue import data_plane
from myqueue.decoding import Chunk, chunks_in
from myqueue.error_subjects import name_partition
from myqueue.fetch_connection import FetchConnection
from myqueue.protocol.errors import MyQueueError
from myqueue.routing import RoutingTable
from myqueue.subscription_state import PartitionState

FETCH_S = 3.0  # for a response, on top of the long poll
_LONGEST_WAIT_S = 3600.0


@dataclass(slots=True)
class FetchRequest:
    state: PartitionState
    offset: int
    table: RoutingTable
    broker_id: int
    wait_s: float
    connection: FetchConnection
    deadline: float


Result = tuple[FetchRequest, list[Chunk] | MyQueueError]


class FetchRequests:
    """Not for several threads at a time; only `interrupt` may come from another."""

    def __init__(self, fetch_bytes: int, *, with_selector: bool) -> None:
        """The selector is for `receive`."""
        self.in_flight: dict[FetchConnection, FetchRequest] = {}
        self.idle: list[FetchConnection] = []
        self._fetch_bytes = fetch_bytes
        self._selector: selectors.BaseSelector | None = None
        self._interruption: tuple[socket.socket, socket.socket] | None = None
        if with_selector:
            self._selector = selectors.DefaultSelector()
            self._interruption = socket.socketpair()
            for end in self._interruption:
                end.setblocking(False)
            self._selector.register(self._interruption[0], selectors.EVENT_READ)

    def interrupt(self) -> None:
        """Ends the `receive` in progress, or the next one."""
        if self._interruption is not None:
            with suppress(BlockingIOError):  # it will end without this byte
                self._interruption[1].send(b"\0")

    def connections(self) -> list[FetchConnection]:
        return [*self.in_flight, *self.idle]

    def add(self, connection: FetchConnection) -> None:
        """An open connection that no request uses."""
        if self._selector is not None:
            self._selector.register(connection, selectors.EVENT_READ)
        self.idle.append(connection)

    def take_idle(self) -> FetchConnection | None:
        while self.idle:
            connection = self.idle.pop()
            if connection.is_usable:
                return connection
            self._discard(connection)
        return None

    def send(self, requests: list[FetchRequest]) -> list[Result]:
        """They are in flight already; those that could not be sent."""
        failed: list[Result] = []
        for request in requests:
            path, headers = data_plane.fetch_request(
                request.table,
                request.broker_id,
                request.state.partition,
                request.offset,
                max_bytes=self._fetch_bytes,
                wait_s=request.wait_s,
            )
            try:
                request.connection.request(path, headers, request.wait_s + FETCH_S)
            except MyQueueError as error:
                failed.append((request, _named(request, error)))
        return failed

    def receive(self, until: float) -> list[Result]:
        """Waits until something arrives, until it is interrupted, and not beyond `until`; there may be no result."""
        assert self._selector is not None
        first = min(until, self.first_deadline())
        timeout_s = None if first == math.inf else min(_LONGEST_WAIT_S, max(0.0, first - time.monotonic()))
        ready: list[FetchConnection] = []
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.fileobj, FetchConnection):
                ready.append(key.fileobj)
            elif self._interruption is not None:
                self._interruption[0].recv(64)
        return self.receive_ready(ready)

    def receive_ready(self, ready: Iterable[FetchConnection]) -> list[Result]:
        """What has arrived at these connections, and requests that nothing has arrived for in time."""
        results: list[Result] = []
        for connection in ready:
            if (request := self.in_flight.get(connection)) is not None:
                result = _result(request)
                if result is not None:
                    results.append((request, result))
            elif connection in self.idle and not connection.is_usable:
                self.idle.remove(connection)
                self._discard(connection)
        now = time.monotonic()
        ended = [request.connection for request, _ in results]
        overdue = [request for request in self.in_flight.values() if now >= request.deadline]
        late = [request for request in overdue if request.connection not in ended]
        results += ((request, _named(request, request.connection.timed_out())) for request in late)
        return results

    def first_deadline(self) -> float:
        return min((request.deadline for request in self.in_flight.values()), default=math.inf)

    def end(self, request: FetchRequest) -> None:
        """Its result was received: the connection is free."""
        del self.in_flight[request.connection]
        if request.connection.fileno() < 0:
            self._discard(request.connection)
        else:
            self.idle.append(request.connection)

    def cancel(self, request: FetchRequest) -> None:
        del self.in_flight[request.connection]
        self._discard(request.connection)

    def discard_all(self) -> None:
        """All connections, also those of which it is not known whether a request uses them."""
        found = set(self.connections())
        if self._selector is not None:
            found.update(
                key.fileobj for key in self._selector.get_map().values() if isinstance(key.fileobj, FetchConnection)
            )
        for connection in found:
            self._discard(connection)
        self.in_flight.clear()
        self.idle.clear()

    def close(self) -> None:
        for connection in self.connections():
            connection.close()
        self.in_flight.clear()
        self.idle.clear()
        if self._selector is not None:
            self._selector.close()
        for end in self._interruption or ():
            end.close()

    __del__ = close  # also when an owner was dropped without being closed

    def _discard(self, connection: FetchConnection) -> None:
        if self._selector is not None:
            with suppress(KeyError):
                self._selector.unregister(connection)
        connection.close()


def _result(request: FetchRequest) -> list[Chunk] | MyQueueError | None:
    """None while the response has not arrived as a whole."""
    try:
        response = request.connection.receive_available()
        if response is None:
            return None
        return list(chunks_in(data_plane.fetch_response(response).data, request.state.partition, request.offset))
    except MyQueueError as error:
        return _named(request, error)


def _named(request: FetchRequest, error: MyQueueError) -> MyQueueError:
    name_partition(error, request.table.topic, request.state.partition, request.connection.url)
    return error
