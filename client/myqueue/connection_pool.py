"""Idle connections to a cluster, shared by all clients of the process with the same URL.

A connection is used by one call at a time: there are never more than concurrent calls, and threads that end leave none
behind.
"""

from collections import deque

from myqueue.http_connection import HttpConnection
from myqueue.process_shared import ProcessShared, process_id

MAX_IDLE = 16  # more than that were of a burst

_reached: set[str] = set()


class ConnectionPool:
    """May be shared by threads."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.process_id = process_id()
        self._idle: deque[HttpConnection] = deque()

    @property
    def reached(self) -> bool:
        """Whether this process has ever had an answer of myqueue from the URL: its cluster is known to exist."""
        return self.url in _reached

    def mark_reached(self) -> None:
        _reached.add(self.url)

    def borrow(self) -> HttpConnection:
        try:
            return self._idle.pop()  # the one that was used last: the server has least reason to have closed it
        except IndexError:
            return HttpConnection(self.url)

    def give_back(self, connection: HttpConnection) -> None:
        if len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """In a child process, closes only the child's copies: the parent's connections stay open."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                return
            connection.close()


POOLS: ProcessShared[str, ConnectionPool] = ProcessShared(ConnectionPool, ConnectionPool.close)
