"""partition_metrics --audit: reads everything that is stored, and compares it with the brokers and the figures."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spark.incremental_query import last_finished
from spark.jobs.partition_metrics import (
    COLUMNS,
    Extent,
    PartitionKey,
    PartitionSums,
    extents,
    partition_measures,
    per_partition,
    read_new_messages,
    sums_in,
)
from spark.jobs.work import Difference, JobResult, Work, result_parts


@dataclass(frozen=True, slots=True)
class Audited:
    """One partition, from its beginning before the audit to where the query had read."""

    topic: str
    partition: int
    extent: Extent
    beginning_after: int  # retention may have gone on while everything was read
    stored: PartitionSums | None  # None: nothing was found
    recorded: Mapping[str, Any] | None  # as of GET /v1/stats/partitions


def run(work: Work) -> JobResult:
    """The sums replace the figures, so that the next audit compares with correct ones."""
    read_new_messages(work)  # then the figures reach as far as the query has read, and so does the audit
    work.run.doing = "reading everything again"
    recorded = {(each["topic"], each["partition_id"]): each for each in work.calls.partitions()}
    pinned = _pinned(work)
    sums = _read(work, pinned) if any(extent.end > extent.beginning for extent in pinned.values()) else []
    stored = {(each.topic, each.partition): each for each in sums}
    after = extents(work.calls.transport)
    # The others were deleted meanwhile, or have no leader.
    pinned = {key: extent for key, extent in pinned.items() if key in after}
    found: list[Difference] = []
    for key in sorted(pinned):
        name = (key.topic, key.partition)
        audited = Audited(*name, pinned[key], after[key].beginning, stored.get(name), recorded.get(name))
        found += differences(audited)
    topic_ids = {key.topic: key.topic_id for key in pinned}
    read = [each for each in sums if each.topic in topic_ids]
    measures = partition_measures(read, topic_ids, {key: after[key] for key in pinned})
    work.post(result_parts(replace=True, partitions=measures))
    work.run.rows += sum(each.messages for each in sums)
    done = f"{sum(each.messages for each in sums):,} messages audited, {len(found):,} differences"
    if found:
        work.run.fails = f"the audit found {len(found):,} differences; {found[0]}"
    return JobResult(done, found)


def _pinned(work: Work) -> dict[PartitionKey, Extent]:
    """The offsets to audit: messages that are produced from now on are left out."""
    batch = last_finished(work.checkpoint)
    found: dict[PartitionKey, Extent] = {}
    if batch is None:
        return found
    for key, extent in extents(work.calls.transport).items():
        end = batch.ends.get((key.topic, key.partition))
        if end is not None and batch.topic_ids.get(key.topic) == key.topic_id:
            found[key] = Extent(extent.beginning, max(extent.beginning, end))
    return found


def _read(work: Work, pinned: dict[PartitionKey, Extent]) -> list[PartitionSums]:
    assign: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for key, extent in pinned.items():
        assign.setdefault(key.topic, []).append(key.partition)
        starts.setdefault(key.topic, {})[str(key.partition)] = extent.beginning
        ends.setdefault(key.topic, {})[str(key.partition)] = extent.end
    messages = (
        work.session.read.format("myqueue")
        .schema(COLUMNS)
        .option("url", work.url)
        .option("assign", json.dumps(assign))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("failOnDataLoss", "false")
        .load()
    )
    return sums_in(work.collect(per_partition(messages)))


def differences(audited: Audited) -> Iterator[Difference]:
    """Compares messages as they are stored, the brokers' offsets and the recorded figures. No IO.

    Messages that retention removed meanwhile are no difference.
    """
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
        return  # retention ran since they were recorded: they cannot be compared
    yield from differ("recorded first offset", extent.beginning, recorded["first_offset"])
    yield from differ("recorded messages", distinct, recorded["messages"])
    if recorded["bytes_exact"]:
        yield from differ("recorded payload bytes", stored.bytes if stored else 0, recorded["payload_bytes"])
