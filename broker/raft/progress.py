"""How far a leader has come with one follower, and how much it may have in flight to it."""

from collections import deque
from enum import Enum


class Mode(Enum):
    PROBE = "probe"  # where the logs agree is not known: one Append at a time
    STREAM = "stream"  # Appends follow each other without waiting
    SNAPSHOT = "snapshot"  # the follower is behind the log start and has been sent the record


class Progress:
    """State of one follower as its leader sees it."""

    __slots__ = (
        "_in_flight",
        "bytes_in_flight",
        "commit",
        "held",
        "loading",
        "match",
        "mode",
        "moved_at",
        "next",
        "waiting",
    )

    def __init__(self, next_index: int, now: int) -> None:
        self.match = 0  # highest index known to be on its disk
        self.commit = 0  # the commit index that was last sent to it
        self.next = next_index
        self.mode = Mode.PROBE
        self.waiting = False  # for the answer to a probe or a snapshot
        self.loading = False  # for the driver to read entries from disk
        self.held = False  # no entries for a while: it refused them, or they could not be read here
        self.moved_at = now  # last answer, or when something was sent after a pause
        self.bytes_in_flight = 0
        self._in_flight: deque[tuple[int, int]] = deque()  # (last index, bytes) of each Append

    def paused(self, window_messages: int, window_bytes: int) -> bool:
        if self.loading or self.waiting or self.held:
            return True
        return len(self._in_flight) >= window_messages or self.bytes_in_flight >= window_bytes

    def sent(self, last_index: int, size: int, now: int) -> None:
        if not self._in_flight:
            self.moved_at = now
        if self.mode is Mode.STREAM:
            self.next = last_index + 1
            self._in_flight.append((last_index, size))
            self.bytes_in_flight += size
        else:
            self.waiting = True

    def acknowledged(self, match: int, log_start: int, now: int) -> bool:
        """The follower holds everything up to `match`. True: that is new."""
        self.moved_at = now
        is_new = match > self.match
        if is_new:
            self.match = match
        while self._in_flight and self._in_flight[0][0] <= match:
            self.bytes_in_flight -= self._in_flight.popleft()[1]
        if self.mode is not Mode.STREAM and self.match >= log_start - 1:
            self._restart(Mode.STREAM)
            self.next = self.match + 1
        self.next = max(self.next, self.match + 1)
        return is_new

    def refused(self, previous_index: int, agree_at_most: int) -> bool:
        """The follower has another entry, or none, at `previous_index`. False: the answer is old."""
        if previous_index <= self.match or (self.mode is not Mode.STREAM and previous_index != self.next - 1):
            return False
        self._restart(Mode.PROBE)
        self.next = max(self.match + 1, min(previous_index, agree_at_most + 1))
        return True

    def snapshot_sent(self, now: int) -> None:
        self._restart(Mode.SNAPSHOT)
        self.waiting = True
        self.moved_at = now

    def load(self, now: int) -> None:
        self.loading = True
        self.moved_at = now

    def stuck(self, since: int) -> bool:
        """Something is in flight, or held back, and nothing has come back since then."""
        return (self.waiting or self.loading or self.held or bool(self._in_flight)) and self.moved_at <= since

    def hold(self, now: int) -> None:
        """Nothing more until `retry`; what is in flight is forgotten."""
        self.retry()
        self.held = True
        self.moved_at = now

    def retry(self) -> None:
        """Messages in flight may be lost: start again from what is known."""
        if self.mode is Mode.STREAM:
            self.next = self.match + 1
        self._restart(Mode.PROBE)
        self.loading = self.held = False

    def _restart(self, mode: Mode) -> None:
        self.mode = mode
        self.waiting = False
        self._in_flight.clear()
        self.bytes_in_flight = 0
