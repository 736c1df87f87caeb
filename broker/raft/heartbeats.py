"""Heartbeats between two brokers, for all groups at once.

Outgoing: a versioned table of the groups led here, sent as changes since the version the peer confirmed. Incoming: the
table as the peer sent it, and which of its rows this broker does not follow. Both directions heal themselves: a peer
that restarts has a new session, its tables are empty and everything is sent again.
"""

from collections import deque

from broker.raft.messages import NO_REPLY, Heartbeat, HeartbeatReply, Row, RowKey

_RETIRED_SESSIONS = 8


class PeerHeartbeats:
    __slots__ = (
        "answered_at",
        "barred",
        "broker_id",
        "changes",
        "confirmed",
        "contact",
        "disk_low",
        "held",
        "held_version",
        "introduced",
        "not_followed",
        "not_supported",
        "oldest_base",
        "received_at",
        "retired",
        "rows",
        "sent",
        "session",
        "session_at",
        "silent",
        "version",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.session: int | None = None
        self.session_at = 0  # of its last frame
        self.retired: deque[int] = deque(maxlen=_RETIRED_SESSIONS)
        # outgoing: groups led here
        self.rows: dict[RowKey, Row] = {}
        self.version = 0
        self.confirmed = 0
        self.sent = 0  # of the last frame; 0: it holds nothing for certain
        self.oldest_base = 0
        self.changes: dict[RowKey, int] = {}  # version of the last change the peer has not confirmed
        self.introduced: dict[RowKey, int] = {}  # the same for a row that is new or has a new term
        self.answered_at: int | None = None  # when the newest answered heartbeat was sent, by our clock
        self.contact = False  # that is less than a lease ago
        self.disk_low = False  # by its newest answer
        self.barred: tuple[RowKey, ...] = ()  # the same: rows whose replica there should not lead
        self.not_supported: dict[RowKey, int] = {}  # rows the peer does not follow
        # incoming: groups led there
        self.held: dict[RowKey, Row] = {}
        self.held_version = 0
        self.received_at: int | None = None
        self.silent = True  # no heartbeat for the shortest election timeout
        self.not_followed: dict[RowKey, int] = {}  # held rows we do not follow, with our term

    def is_stale(self, session: int, now: int, timeout_ms: int) -> bool:
        """Whether a frame is from a process that has been replaced, delayed in the network.

        Which of two sessions is the newer one cannot be seen from them, and the first frame ever seen may itself be a
        late one: when the session taken for current has gone quiet, the other one is accepted.
        """
        if session == self.session:
            self.session_at = now
            return False
        return session in self.retired and now - self.session_at < timeout_ms

    def start_session(self, session: int, now: int) -> list[RowKey]:
        """A new process answers under this broker's id. Returns the rows its predecessor led."""
        if self.session is not None:
            self.retired.append(self.session)
        self.session = session
        self.session_at = now
        abandoned = list(self.held)
        self.held.clear()
        self.held_version = 0
        self.not_followed.clear()
        self.not_supported.clear()
        self.disk_low = False
        self.barred = ()
        self.start_over()
        return abandoned

    def start_over(self) -> None:
        """How much of our table the peer holds is unknown: send the whole of it, under a new version.

        Rows removed before are not in `changes` any more, so no older version may serve as a base again.
        """
        self.version += 1
        self.oldest_base = self.version
        self.confirmed = self.sent = 0
        self.changes = dict.fromkeys(self.rows, self.version)
        self.introduced = dict.fromkeys(self.rows, self.version)

    def set_row(self, key: RowKey, row: Row) -> None:
        old = self.rows.get(key)
        if old == row:
            return
        self.version += 1
        self.rows[key] = row
        self.changes[key] = self.version
        if old is None or old[:2] != row[:2]:
            self.introduced[key] = self.version
            self.not_supported.pop(key, None)

    def remove_row(self, key: RowKey) -> None:
        if self.rows.pop(key, None) is None:
            return
        self.version += 1
        self.changes[key] = self.version
        self.introduced.pop(key, None)
        self.not_supported.pop(key, None)

    def supports(self, key: RowKey) -> bool:
        return self.contact and key not in self.introduced and key not in self.not_supported

    def heartbeat(self, broker_id: int, session: int, now: int) -> Heartbeat | None:
        """None: this peer has no row and needs no change."""
        if not self.rows and not self.changes:
            return None
        rows = tuple((key, self.rows.get(key)) for key in self.changes)
        self.sent = self.version
        return Heartbeat(broker_id, session, now, self.confirmed, self.version, rows)

    def news(self, broker_id: int, session: int) -> Heartbeat | None:
        """Only what has changed since the last frame, without an answer. If that one was lost, so is this one."""
        if not self.sent or self.sent == self.version:
            return None
        rows = tuple((key, self.rows.get(key)) for key, version in self.changes.items() if version > self.sent)
        frame = Heartbeat(broker_id, session, NO_REPLY, self.sent, self.version, rows)
        self.sent = self.version
        return frame

    def confirm(self, version: int) -> None:
        """The peer's newest answer: it holds our table as of this version."""
        if version < self.confirmed:
            self.start_over()
        if version < self.oldest_base or version == self.confirmed:
            return
        self.confirmed = version
        self.changes = {key: at for key, at in self.changes.items() if at > version}
        self.introduced = {key: at for key, at in self.introduced.items() if at > version}

    def refusals(self, reply: HeartbeatReply) -> list[tuple[RowKey, int]]:
        """Refusals of rows as they are now; those of older rows are outdated."""
        self.not_supported = {
            key: term for key, term in reply.refused if key in self.rows and self.changes.get(key, 0) <= reply.version
        }
        return list(self.not_supported.items())

    def take(self, heartbeat: Heartbeat) -> list[tuple[RowKey, Row | None]]:
        """The changes to act on. None of them if they are old, or if some before them are missing here."""
        if not heartbeat.base <= self.held_version < heartbeat.version:
            return []
        self.held_version = heartbeat.version
        rows = list(heartbeat.rows)
        if heartbeat.base == 0:  # the whole table: what it does not name is gone
            named = {key for key, _ in rows}
            rows.extend((key, None) for key in self.held if key not in named)
        for key, row in rows:
            self.not_followed.pop(key, None)
            if row is None:
                self.held.pop(key, None)
            else:
                self.held[key] = row
        return rows
