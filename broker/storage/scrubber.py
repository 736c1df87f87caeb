"""Reads everything that is stored once in a while, at a low rate: damage is found while other replicas can help."""

import time
from collections.abc import Callable, Iterable

from broker.storage.disk import DiskError
from broker.storage.entry import Corrupted
from broker.storage.partition_log import PartitionLog

_PIECE_BYTES = 1 << 20
_PIECES_AT_ONCE = 4


class Scrubber:
    """One partition after the other, from its first entry to its last; then the next pass begins."""

    def __init__(
        self,
        interval_s: float,
        on_damage: Callable[[PartitionLog, str], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`interval_s` is the time for a whole pass."""
        self._interval_s = interval_s
        self._on_damage = on_damage
        self._clock_s = clock_s
        self._last_s = clock_s()
        self._due_bytes = 0.0
        self._waiting: list[PartitionLog] = []
        self._log: PartitionLog | None = None
        self._next_index = 0
        self.passes = 0

    def run(self, logs: Iterable[PartitionLog]) -> None:
        """The pieces that are due by now. `logs` is everything there is; those of a pass are fixed when it begins."""
        logs = [log for log in logs if not log.is_closed]
        now_s = self._clock_s()
        total = sum(log.tail.end_bytes - log.group.start_bytes for log in logs)
        self._due_bytes += (now_s - self._last_s) * total / self._interval_s
        self._due_bytes = min(self._due_bytes, _PIECES_AT_ONCE * _PIECE_BYTES)
        self._last_s = now_s
        while self._due_bytes > 0:
            if self._log is None or self._log.is_closed:
                if not self._waiting:
                    self.passes += 1
                    self._waiting = logs
                    if not logs:
                        return
                self._log, self._next_index = self._waiting.pop(), 0
            self._due_bytes -= self._scrub_piece(self._log)

    def _scrub_piece(self, log: PartitionLog) -> int:
        """How much of what is due it has used up."""
        try:
            following = log.scrub(max(self._next_index, log.group.first_index), _PIECE_BYTES)
        except Corrupted as error:
            self._on_damage(log, str(error))
            following = None
        except DiskError:
            following = None  # not damage; the next pass reads it again
        if following is None:
            self._log = None
            return _PIECE_BYTES // _PIECES_AT_ONCE
        self._next_index = following
        return _PIECE_BYTES
