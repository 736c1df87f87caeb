"""Statistics: which batches of a Spark query count, and how their figures add up. No IO; `now` is an argument.

Offsets make the sums exact: a range counts once, however often it is measured, and a gap between two ranges shows.
Bytes are exact until retention deletes a part of a measured range: the size of that part is unknown, so the bytes
shrink in proportion and are marked as not exact.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, auto

from db.stats import Figures
from myqueue.protocol.errors import AnotherQuery
from myqueue.protocol.models import MAX_OFFSET, PartitionMeasure


class BatchDecision(Enum):
    REFRESH = auto()  # nothing was newly read
    ADD = auto()
    REPEATED = auto()  # it was applied before
    TAKE_OVER = auto()  # the sums of earlier queries do not count any more


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The last batch that was applied."""

    query_id: str
    batch_id: int
    part: int


def decide_batch(last: LastBatch | None, query_id: str | None, batch_id: int | None, part: int) -> BatchDecision:
    """Batches of one query are applied in order: one that is not beyond the last was applied before.

    Another query has a checkpoint of its own. Only its very first batch holds everything from the beginning; a later
    one continues from batches that this job never received.
    """
    if batch_id is None:
        return BatchDecision.REFRESH
    if last is None:
        return BatchDecision.TAKE_OVER
    if query_id == last.query_id:
        return BatchDecision.REPEATED if (batch_id, part) <= (last.batch_id, last.part) else BatchDecision.ADD
    if (batch_id, part) == (0, 0):
        return BatchDecision.TAKE_OVER
    raise AnotherQuery(details={"query_id": last.query_id, "batch_id": last.batch_id})


@dataclass(frozen=True, slots=True)
class _OffsetRange:
    start: int
    end: int
    bytes: int
    exact: bool
    first_timestamp: int | None
    last_timestamp: int | None

    def from_offset(self, offset: int) -> "_OffsetRange | None":
        """The part from this offset on."""
        if offset >= self.end:
            return None
        if offset <= self.start:
            return self
        left = self.bytes * (self.end - offset) // (self.end - self.start)
        return replace(self, start=offset, bytes=left, exact=self.exact and self.bytes == 0)


def merged_figures(before: Figures | None, measure: PartitionMeasure, now: datetime) -> Figures:
    beginning = measure.beginning_offset
    new = _newly_read(measure)
    if before is None:
        start, known_end, known = beginning if new is None else max(beginning, new.start), 0, None
    else:
        start, known_end = max(before.first_offset, beginning), before.end_offset
        known = _known(before).from_offset(beginning)
    counted = None if new is None else new.from_offset(max(beginning, known_end))
    end = max(start, known_end, 0 if new is None else new.end)
    found = new is not None and (before is None or new.end > known_end)  # else it was all read before
    missed = max(0, new.start - max(known_end, beginning)) if new is not None and before is not None else 0
    pieces = [piece for piece in (known, counted) if piece is not None]
    return Figures(
        first_offset=start,
        end_offset=end,
        log_end_offset=max(measure.end_offset, end),
        bytes=_stored(sum(piece.bytes for piece in pieces)),
        bytes_exact=all(piece.exact for piece in pieces),
        first_timestamp=min((p.first_timestamp for p in pieces if p.first_timestamp is not None), default=None),
        last_timestamp=max((p.last_timestamp for p in pieces if p.last_timestamp is not None), default=None),
        gaps=_stored((before.gaps if before else 0) + (measure.gaps + missed if found else 0)),
        duplicates=_stored((before.duplicates if before else 0) + (measure.duplicates if found else 0)),
        rate_per_minute=_rate(before, end, now),
        computed_at=now,
        stored_bytes=measure.stored_bytes,
    )


def replaced_figures(before: Figures | None, measure: PartitionMeasure, now: datetime) -> Figures:
    """The measure covers the whole partition. It says nothing about how fast the partition grows."""
    return replace(merged_figures(None, measure, now), rate_per_minute=before.rate_per_minute if before else None)


def _newly_read(measure: PartitionMeasure) -> _OffsetRange | None:
    if measure.from_offset is None or measure.to_offset is None:
        return None
    return _OffsetRange(
        measure.from_offset,
        measure.to_offset,
        measure.payload_bytes,
        True,
        measure.first_timestamp,
        measure.last_timestamp,
    )


def _known(before: Figures) -> _OffsetRange:
    return _OffsetRange(
        before.first_offset,
        before.end_offset,
        before.bytes,
        before.bytes_exact,
        before.first_timestamp,
        before.last_timestamp,
    )


def _rate(before: Figures | None, end: int, now: datetime) -> float | None:
    if before is None:
        return None
    minutes = (now - before.computed_at).total_seconds() / 60
    return (end - before.end_offset) / minutes if minutes > 0 else before.rate_per_minute


def _stored(count: int) -> int:
    """A job's numbers are not checked, but they have to fit into a column."""
    return min(count, MAX_OFFSET)
