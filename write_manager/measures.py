"""What was newly read of a partition, put together with what was known of it. Values in, figures out.

Offsets make this exact: a stretch counts once, however often it is measured, and a hole between two stretches shows.
Bytes are exact until retention takes away a part of what was measured: nobody knows the size of that part any more, so
the bytes shrink in proportion, and say so.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from db.stats import Figures
from myqueue.protocol.models import MAX_OFFSET, PartitionMeasure


@dataclass(frozen=True, slots=True)
class _Stretch:
    start: int
    end: int
    bytes: int
    exact: bool
    first_timestamp: int | None
    last_timestamp: int | None

    def from_offset(self, offset: int) -> "_Stretch | None":
        """What is left of it from this offset on."""
        if offset >= self.end:
            return None
        if offset <= self.start:
            return self
        left = self.bytes * (self.end - offset) // (self.end - self.start)
        return replace(self, start=offset, bytes=left, exact=self.exact and self.bytes == 0)


def merged(before: Figures | None, measure: PartitionMeasure, now: datetime) -> Figures:
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
    )


def replaced(before: Figures | None, measure: PartitionMeasure, now: datetime) -> Figures:
    """The measure is the whole. It says nothing about how fast the partition grows."""
    return replace(merged(None, measure, now), rate_per_minute=before.rate_per_minute if before else None)


def _newly_read(measure: PartitionMeasure) -> _Stretch | None:
    if measure.from_offset is None or measure.to_offset is None:
        return None
    return _Stretch(
        measure.from_offset,
        measure.to_offset,
        measure.bytes,
        True,
        measure.first_timestamp,
        measure.last_timestamp,
    )


def _known(before: Figures) -> _Stretch:
    return _Stretch(
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
    """What clients send is theirs to answer for, but it has to fit into a column."""
    return min(count, MAX_OFFSET)
