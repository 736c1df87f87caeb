"""Session tokens: a position in PostgreSQL's write-ahead log, and the wait until a standby has replayed it."""

import time

from sqlalchemy import text
from sqlalchemy.orm import Session

from db.servers import STATE, DatabaseServer
from db.timelines import has_replayed, switch_position
from myqueue.protocol.token import Token


def position_of(lsn: str) -> int:
    """PostgreSQL writes a log position as two hexadecimal halves: 0/3000148."""
    high, low = lsn.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def timeline_of(wal_file_name: str) -> int:
    return int(wal_file_name[:8], 16)


def wait_for_replay(session: Session, token: Token, timeout_s: float) -> bool:
    """True when this connection sees everything up to the token. Replay is usually a few milliseconds behind."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        server: DatabaseServer = session.connection().connection.dbapi_connection.server  # type: ignore[union-attr]
        state = server.learn(*session.execute(text(STATE)).one())
        replayed = Token(state.timeline, state.position)
        is_done = has_replayed(replayed, token, None)
        if not is_done and replayed.timeline > token.timeline:
            is_done = has_replayed(replayed, token, switch_position(session, token.timeline))
        session.rollback()  # the next look, and the read itself, need a snapshot of their own
        if is_done:
            return True
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(0.003)
