"""What an audit calls a difference, and what it does not."""

from typing import Any

import pytest

from spark.jobs.partition_audit import Audited, differences
from spark.jobs.partition_metrics import Extent, PartitionSums


def stored(low: int, end: int, *, messages: int | None = None, distinct: int | None = None) -> PartitionSums:
    count = end - low if distinct is None else distinct
    return PartitionSums("t", 0, low, end - 1, count if messages is None else messages, count, 10 * count, 1, 2)


def recorded(low: int, end: int, **more: Any) -> dict[str, Any]:
    figures = {"first_offset": low, "end_offset": end, "messages": end - low, "payload_bytes": 10 * (end - low)}
    return {**figures, "bytes_exact": True, **more}


def whats(audited: Audited) -> list[str]:
    return [difference.what for difference in differences(audited)]


def test_agreement() -> None:
    assert whats(Audited("t", 0, Extent(3, 9), 3, stored(3, 9), recorded(3, 9))) == []
    assert whats(Audited("t", 0, Extent(9, 9), 9, None, recorded(9, 9))) == []


@pytest.mark.parametrize(
    ("found", "figures", "what"),
    [
        (stored(3, 9, distinct=5), recorded(3, 9), "messages stored, by the brokers' offsets"),
        (stored(3, 9, messages=7), recorded(3, 9), "messages with an offset of another one"),
        (stored(4, 9), recorded(3, 9), "first offset stored"),
        (stored(3, 8), recorded(3, 9), "end of what is stored"),
        (None, recorded(3, 9), "messages stored, by the brokers' offsets"),
        (stored(3, 9), recorded(3, 8), "recorded end offset"),
        (stored(3, 9), recorded(4, 9), "recorded first offset"),
        (stored(3, 9), recorded(3, 9, payload_bytes=59), "recorded payload bytes"),
        (stored(3, 9), None, "recorded figures"),
    ],
)
def test_every_disagreement_is_named(found: PartitionSums | None, figures: dict[str, Any] | None, what: str) -> None:
    assert what in whats(Audited("t", 0, Extent(3, 9), 3, found, figures))


def test_estimated_bytes_are_not_judged() -> None:
    assert (
        whats(Audited("t", 0, Extent(3, 9), 3, stored(3, 9), recorded(3, 9, payload_bytes=1, bytes_exact=False))) == []
    )


def test_retention_meanwhile_is_no_difference() -> None:
    # The beginning moved from 3 to 5 while everything was read: two messages may be missing, not three.
    assert whats(Audited("t", 0, Extent(3, 9), 5, stored(5, 9), recorded(3, 9))) == []
    assert whats(Audited("t", 0, Extent(3, 9), 5, stored(3, 9, distinct=5), recorded(3, 9))) == []
    assert whats(Audited("t", 0, Extent(3, 9), 5, stored(6, 9), recorded(3, 9))) != []
    # It moved after the figures were recorded and before the audit looked.
    assert whats(Audited("t", 0, Extent(5, 9), 5, stored(5, 9), recorded(3, 9))) == []
    # Everything is gone.
    assert whats(Audited("t", 0, Extent(3, 9), 9, None, recorded(3, 9))) == []
    assert whats(Audited("t", 0, Extent(3, 9), 12, stored(3, 5), recorded(3, 9))) == []


def test_it_reads_as_a_sentence() -> None:
    (difference,) = differences(Audited("t", 0, Extent(3, 9), 3, stored(3, 9), recorded(3, 9, payload_bytes=1)))
    assert str(difference) == "t/0: recorded payload bytes: 1 instead of 60"
