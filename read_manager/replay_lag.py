"""Replay lag of PostgreSQL's standbys, in bytes and in seconds. No IO; `now_s` is an argument."""

from collections import deque
from collections.abc import Sequence

from db.servers import DatabaseServer

WINDOW_S = 60.0


def written_position(servers: Sequence[DatabaseServer]) -> int | None:
    """Of the primary in its write-ahead log, as of the last probe; None while there is none."""
    positions = [
        server.state.position
        for server in servers
        if answers(server) and server.state is not None and server.state.is_primary and not server.is_replaced
    ]
    return max(positions, default=None)


def answers(server: DatabaseServer) -> bool:
    return server.state is not None and server.is_well and not server.is_hanging


def replay_lag_bytes(server: DatabaseServer, written: int | None) -> int | None:
    """Of a standby that answers."""
    if written is None or server.state is None or server.state.is_primary or not answers(server):
        return None
    return max(0, written - server.state.position)


class ReplayTimes:
    """When the primary was seen to have written how much: what a standby has replayed is as old as that."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._written: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, written: int | None) -> None:
        if written is None:
            return
        if self._written and written < self._written[-1][1]:
            self._written.clear()  # another primary, whose log is another one
        self._written.append((now_s, written))
        while now_s - self._written[0][0] > self._window_s:
            self._written.popleft()

    def lag_s(self, now_s: float, replayed: int) -> float | None:
        """A lower bound if it is behind all that was seen; None if that was too little."""
        missing = [at_s for at_s, written in self._written if written > replayed]
        if not missing:
            return 0.0 if self._written else None
        if len(self._written) == 1:
            return None
        return now_s - missing[0]
