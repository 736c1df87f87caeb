"""How far a leader has come with one follower, and how much it may have in flight to it."""

from collections import deque
from enum import Enum


class Mode(Enum):
    PROBE = "probe"  # where the logs agree is not known: one Append at a time
    STREAM = "stream"  # Appends follow each other without waiting
    SNAPSHOT = "snapshot"  # the follower is behind the log start and has been sent the record


class Progress:
    __slots__ = ("_flying", "bytes_flying", "loading", "match", "mode", "moved_at", "next", "waiting")

    def __init__(self, next_index: int, now: int) -> None:
        self.match = 0  # highest index known to be on its disk
        self.next = next_index
        self.mode = Mode.PROBE
        self.waiting = False  # for the answer to a probe or a snapshot
        self.loading = False  # for the driver to read entries from disk
        self.moved_at = now  # last answer, or when something went out after a rest
        self.bytes_flying = 0
        self._flying: deque[tuple[int, int]] = deque()  # (last index, bytes) of each Append

    def paused(self, window_messages: int, window_bytes: int) -> bool:
        if self.loading or self.waiting:
            return True
        return len(self._flying) >= window_messages or self.bytes_flying >= window_bytes

    def sent(self, last_index: int, size: int, now: int) -> None:
        if not self._flying:
            self.moved_at = now
        if self.mode is Mode.STREAM:
            self.next = last_index + 1
            self._flying.append((last_index, size))
            self.bytes_flying += size
        else:
            self.waiting = True

    def acknowledged(self, match: int, log_start: int, now: int) -> bool:
        """The follower holds everything up to `match`. True: that is news."""
        self.moved_at = now
        news = match > self.match
        if news:
            self.match = match
        while self._flying and self._flying[0][0] <= match:
            self.bytes_flying -= self._flying.popleft()[1]
        if self.mode is not Mode.STREAM and self.match >= log_start - 1:
            self._restart(Mode.STREAM)
            self.next = self.match + 1
        self.next = max(self.next, self.match + 1)
        return news

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
        """Something is under way and nothing has come back since then."""
        return (self.waiting or self.loading or bool(self._flying)) and self.moved_at <= since

    def retry(self) -> None:
        """What was in flight may be lost: start again from what is known."""
        if self.mode is Mode.STREAM:
            self.next = self.match + 1
        self._restart(Mode.PROBE)
        self.loading = False

    def _restart(self, mode: Mode) -> None:
        self.mode = mode
        self.waiting = False
        self._flying.clear()
        self.bytes_flying = 0
