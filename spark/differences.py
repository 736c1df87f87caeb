"""What an audit compares: messages as they are stored, what brokers say of them, and the recorded figures. No IO."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spark.catalog import Extent
from spark.measures import PartitionSums


@dataclass(frozen=True, slots=True)
class Difference:
    topic: str
    partition: int
    what: str
    expected: int
    found: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}: {self.what}: {self.found} instead of {self.expected}"


@dataclass(frozen=True, slots=True)
class Audited:
    """One partition from where it began, when that was asked, to where the query had read."""

    topic: str
    partition: int
    extent: Extent
    beginning_after: int  # retention may have gone on while everything was read
    stored: PartitionSums | None  # None: nothing was found
    recorded: Mapping[str, Any] | None  # as of GET /v1/stats/partitions


def differences(audited: Audited) -> Iterator[Difference]:
    """Empty: all three agree. What retention removed meanwhile is no difference."""
    extent, stored = audited.extent, audited.stored
    expected = extent.end - extent.beginning
    removed = max(0, min(audited.beginning_after, extent.end) - extent.beginning)

    def differ(what: str, expected: int, found: int) -> Iterator[Difference]:
        if expected != found:
            yield Difference(audited.topic, audited.partition, what, expected, found)

    distinct = stored.distinct if stored else 0
    if not expected - removed <= distinct <= expected:
        yield from differ("messages stored, by the brokers' offsets", expected, distinct)
    if stored is not None:
        yield from differ("messages with an offset of another one", 0, stored.duplicates)
        if removed < expected:
            yield from differ("end of what is stored", extent.end, stored.high + 1)
        if not removed:
            yield from differ("first offset stored", extent.beginning, stored.low)
    recorded = audited.recorded
    if recorded is None:
        yield from differ("recorded figures", 1, 0)
        return
    yield from differ("recorded end offset", extent.end, recorded["end_offset"])
    if removed or recorded["first_offset"] < extent.beginning:
        return  # they were right when they were recorded, as far as anybody can tell
    yield from differ("recorded first offset", extent.beginning, recorded["first_offset"])
    yield from differ("recorded messages", distinct, recorded["messages"])
    if recorded["bytes_exact"]:
        yield from differ("recorded bytes", stored.bytes if stored else 0, recorded["bytes"])
