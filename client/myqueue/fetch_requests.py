"""Fetches in flight: a connection each, and one selector over all of them."""

import math
import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass

from myqueue import data_plane
from myqueue.decoding import Chunk, chunks_in
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

    def __init__(self, fetch_bytes: int) -> None:
        self.in_flight: dict[FetchConnection, FetchRequest] = {}
        self.idle: list[FetchConnection] = []
        self._fetch_bytes = fetch_bytes
        self._selector = selectors.DefaultSelector()
        self._interruptions, self._interrupting = socket.socketpair()
        for end in (self._interruptions, self._interrupting):
            end.setblocking(False)
        self._selector.register(self._interruptions, selectors.EVENT_READ)

    def interrupt(self) -> None:
        """Ends the `receive` in progress, or the next one."""
        with suppress(BlockingIOError):  # it will end without this byte
            self._interrupting.send(b"\0")

    def add(self, connection: FetchConnection) -> None:
        """An open connection that no request uses."""
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
                failed.append((request, error))
        return failed

    def receive(self, until: float) -> list[Result]:
        """Waits until something arrives, until it is interrupted, and not beyond `until`; there may be no result."""
        first = min([until, *(request.deadline for request in self.in_flight.values())])
        timeout_s = None if first == math.inf else min(_LONGEST_WAIT_S, max(0.0, first - time.monotonic()))
        results: list[Result] = []
        for key, _ in self._selector.select(timeout_s):
            connection = key.fileobj
            if not isinstance(connection, FetchConnection):
                self._interruptions.recv(64)
            elif (request := self.in_flight.get(connection)) is not None:
                result = _result(request)
                if result is not None:
                    results.append((request, result))
            elif not connection.is_usable:
                self.idle.remove(connection)
                self._discard(connection)
        now = time.monotonic()
        ended = [request.connection for request, _ in results]
        overdue = [request for request in self.in_flight.values() if now >= request.deadline]
        results += ((request, request.connection.timed_out()) for request in overdue if request.connection not in ended)
        return results

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
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, FetchConnection):
                self._discard(key.fileobj)
        self.in_flight.clear()
        self.idle.clear()

    def close(self) -> None:
        for connection in [*self.in_flight, *self.idle]:
            connection.close()
        self.in_flight.clear()
        self.idle.clear()
        self._selector.close()
        self._interruptions.close()
        self._interrupting.close()

    __del__ = close  # also when an owner was dropped without being closed

    def _discard(self, connection: FetchConnection) -> None:
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
        return error
