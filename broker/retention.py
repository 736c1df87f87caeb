"""Retention: the leader cuts entries beyond the topic's limits; the cut is an entry of the log.

By bytes: the oldest entries are cut as long as the rest is still at least the limit. By time: entries appended longer
ago than the limit are cut, but only while this broker's clock agrees with the others'. Small cuts wait: each of them
writes a snapshot record on all replicas.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from broker.raft.configuration import GroupId
from broker.raft.events import AdvanceLogStart
from broker.replica import Replica
from broker.storage.disk import DiskError
from broker.storage.entry import Corrupted

MAX_CLOCK_ERROR_MS = 5_000
_CLOCK_VALID_MS = 10_000
_MIN_CUT_BYTES = 16 << 20
_MIN_CUT_SHARE = 16
_MAX_DELAY_S = 30.0


class SharedClock:
    """The median of the brokers' calendar clocks from the last heartbeat answer, continued by our monotonic clock."""

    def __init__(
        self,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self.now_ms = clock_ms
        self._monotonic_ms = monotonic_ms
        self._median: tuple[int, int] | None = None  # median, and when by the monotonic clock
        self._lock = threading.Lock()

    def set_median(self, median_ms: int) -> None:
        with self._lock:
            self._median = median_ms, self._monotonic_ms()

    def agrees(self) -> bool:
        with self._lock:
            if self._median is None:
                return False
            median_ms, then = self._median
        passed = self._monotonic_ms() - then
        return passed <= _CLOCK_VALID_MS and abs(self.now_ms() - (median_ms + passed)) <= MAX_CLOCK_ERROR_MS


@dataclass(frozen=True, slots=True)
class RetentionCut:
    start_index: int
    start_offset: int
    freed_bytes: int


def is_worth_it(cut: RetentionCut, size_bytes: int, waited_s: float) -> bool:
    return (
        cut.freed_bytes >= _MIN_CUT_BYTES
        or cut.freed_bytes * _MIN_CUT_SHARE >= size_bytes
        or (waited_s >= _MAX_DELAY_S and cut.freed_bytes > 0)
    )


def find_cut(replica: Replica, now_ms: int | None) -> RetentionCut | None:
    """The new start of the log; None when everything stays. `now_ms` None: no retention by time."""
    log, view = replica.log, replica.view
    group, end = log.group, view.applied + 1
    settings = group.settings
    start = group.first_index
    if settings.retention_bytes is not None:
        spare = log.tail.end_bytes - group.start_bytes - settings.retention_bytes
        if spare > 0:
            start = log.first_ending_beyond(group.start_bytes + spare, end)
    if settings.retention_ms is not None and now_ms is not None:
        start = max(start, log.first_appended_since(now_ms - settings.retention_ms, end))
    if start <= group.first_index:
        return None
    first, last_cut = log.fields(start), log.fields(start - 1)
    if last_cut is None:
        return None  # cut meanwhile
    offset = view.applied_offset if first is None or start == end else first[2]
    return RetentionCut(start, offset, last_cut[3] - group.start_bytes)


class Retention:
    def __init__(self, replicas: Callable[[], list[Replica]], clock: SharedClock) -> None:
        self._replicas = replicas
        self._clock = clock
        self._cut_at: dict[GroupId, float] = {}

    def run(self) -> None:
        now_ms = self._clock.now_ms()
        trusted_ms = now_ms if self._clock.agrees() else None
        for replica in self._replicas():
            settings = replica.log.group.settings
            limited = settings.retention_ms is not None or settings.retention_bytes is not None
            if limited and replica.view.ready:
                self._cut(replica, now_ms, trusted_ms)

    def _cut(self, replica: Replica, now_ms: int, trusted_ms: int | None) -> None:
        try:
            cut = find_cut(replica, trusted_ms)
        except Corrupted as error:
            replica.found_damage(str(error))
            return
        except DiskError:
            return  # not damage; the next round tries again
        monotonic_s = time.monotonic()
        last_s = self._cut_at.setdefault(replica.name, monotonic_s)
        if cut is not None and is_worth_it(cut, replica.bounds().size_bytes, monotonic_s - last_s):
            self._cut_at[replica.name] = monotonic_s
            replica.leader_requests.send(
                lambda number: AdvanceLogStart(number, cut.start_index, cut.start_offset, now_ms)
            )
