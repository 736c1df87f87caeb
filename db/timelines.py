"""Timelines: each promotion begins another one. Where they ended, and which is the current one."""

import threading
from dataclasses import dataclass

from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from db.models import TimelineSwitch
from myqueue.protocol.token import Token

# A position on the new timeline instead of the exact end of the old one, which PostgreSQL shows to a superuser only.
# Everything that was confirmed on the old timeline is before it, and it is before the row itself: a server that
# returns the row has replayed it. The first eight digits of a segment's name are its timeline.
_RECORD_SWITCHES = """
    INSERT INTO timeline_switch (timeline, position)
    SELECT ended, pg_current_wal_lsn() - '0/0'::pg_lsn
    FROM generate_series(1, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint - 1) ended
    ON CONFLICT (timeline) DO NOTHING
"""


def record_switches(connection: Connection) -> None:
    """In the transaction of a new epoch: for every timeline that ended since the last one."""
    connection.exec_driver_sql(_RECORD_SWITCHES)


def switch_position(session: Session, timeline: int) -> int | None:
    """None when it has not ended, as far as this server knows."""
    return session.scalar(select(TimelineSwitch.position).where(TimelineSwitch.timeline == timeline))


def has_replayed(server: Token, token: Token, switched_at: int | None) -> bool:
    """Whether a server at this place of the write-ahead log has everything that was confirmed before the token.

    A token of a timeline that ended counts as no more than the place where it ended: positions after it on the old
    timeline were never confirmed, and on the new one they mean something else.
    """
    position = token.position if switched_at is None else min(token.position, switched_at)
    return server.timeline >= token.timeline and server.position >= position


class CurrentTimeline:
    """The highest timeline that this process has seen at any server.

    Not from the tokens of requests: a client could name any, and no server would be good enough any more.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self.highest = 0

    def seen(self, timeline: int) -> None:
        with self._changing:
            self.highest = max(self.highest, timeline)


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a server said of itself."""

    is_primary: bool
    timeline: int  # the one that it writes, or the highest that it was seen to replay
    position: int  # in the write-ahead log: written, or replayed
    streams: int | None = None  # the timeline that it receives from its primary right now
    standbys: int | None = None  # how many can confirm the commits of a primary; None when it needs none

    def problem(self, current: int) -> str | None:
        if self.is_primary and self.timeline < current:
            return f"claims to be primary on timeline {self.timeline}, which has ended; the current one is {current}"
        if not self.is_primary and self.streams is None:
            return "standby does not stream from a primary"
        if not self.is_primary and self.streams != current:
            return f"standby streams timeline {self.streams}, which has ended; the current one is {current}"
        if self.is_primary and self.standbys == 0:
            return "no standby confirms its commits"
        return None
