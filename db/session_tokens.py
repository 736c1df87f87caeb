"""Session tokens: a position in PostgreSQL's write-ahead log, and the wait until a standby has replayed it."""

import time

from sqlalchemy import text
from sqlalchemy.orm import Session

from db.servers import DatabaseServer
from myqueue.protocol.token import Token

# What a standby receives from a timeline it also replays from there: it could not follow it otherwise. Without a
# primary it receives nothing; then the control file has a timeline that was replayed, if not always the latest.
_REPLAYED = text("""
    SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text,
    CASE WHEN NOT pg_is_in_recovery() THEN pg_walfile_name(pg_current_wal_lsn()) END,
    greatest(
        (SELECT received_tli FROM pg_stat_wal_receiver),
        (SELECT timeline_id FROM pg_control_checkpoint()),
        (SELECT min_recovery_end_timeline FROM pg_control_recovery())
    )
""")


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
        lsn, file_name, timeline = session.execute(_REPLAYED).one()
        server: DatabaseServer = session.connection().connection.dbapi_connection.server  # type: ignore[union-attr]
        session.rollback()  # the next look, and the read itself, need a snapshot of their own
        if file_name is not None:
            timeline = timeline_of(file_name)  # of a primary; one that was replaced is still on its old timeline
        else:
            # No server goes back to an earlier timeline: what was seen before holds after its primary is gone.
            timeline = server.timeline = max(timeline, server.timeline)
        if timeline >= token.timeline and position_of(lsn) >= token.position:
            return True
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(0.003)
