"""partition_metrics --audit: reads everything that is stored, and compares it with the brokers and the figures."""

import json

from spark.aggregates import PARTITION_COLUMNS, per_partition
from spark.catalog import Extent, Place, extents
from spark.checkpoint import last_finished
from spark.differences import Audited, Difference, differences
from spark.jobs.partition_metrics import read_what_is_new, sums_in
from spark.jobs.work import Work
from spark.measures import PartitionSums, partition_measures, posts
from spark.tables import Done


def run(work: Work) -> Done:
    """What was found replaces the figures, so that the next audit compares with the truth."""
    read_what_is_new(work)  # then the figures reach as far as the query has read, and so does the audit
    work.run.doing = "reading everything again"
    recorded = {(each["topic"], each["partition_id"]): each for each in work.calls.partitions()}
    pinned = _pinned(work)
    sums = _read(work, pinned) if any(extent.end > extent.beginning for extent in pinned.values()) else []
    stored = {(each.topic, each.partition): each for each in sums}
    after = extents(work.calls.transport)
    # The others were deleted meanwhile, or nobody leads them.
    pinned = {place: extent for place, extent in pinned.items() if place in after}
    found: list[Difference] = []
    for place in sorted(pinned):
        name = (place.topic, place.partition)
        audited = Audited(*name, pinned[place], after[place].beginning, stored.get(name), recorded.get(name))
        found += differences(audited)
    topic_ids = {place.topic: place.topic_id for place in pinned}
    read = [each for each in sums if each.topic in topic_ids]
    measures = partition_measures(read, topic_ids, {place: after[place] for place in pinned})
    for results in posts(replace=True, partitions=measures):
        work.calls.post(work.run.run_id, results)
    work.run.rows += sum(each.messages for each in sums)
    done = f"{sum(each.messages for each in sums):,} messages audited, {len(found):,} differences"
    if found:
        work.run.fails = f"the audit found {len(found):,} differences; {found[0]}"
    return Done(done, found)


def _pinned(work: Work) -> dict[Place, Extent]:
    """Messages that are produced from now on are not looked at."""
    batch = last_finished(work.checkpoint)
    found: dict[Place, Extent] = {}
    if batch is None:
        return found
    for place, extent in extents(work.calls.transport).items():
        end = batch.ends.get((place.topic, place.partition))
        if end is not None and batch.topic_ids.get(place.topic) == place.topic_id:
            found[place] = Extent(extent.beginning, max(extent.beginning, end))
    return found


def _read(work: Work, pinned: dict[Place, Extent]) -> list[PartitionSums]:
    assign: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for place, extent in pinned.items():
        assign.setdefault(place.topic, []).append(place.partition)
        starts.setdefault(place.topic, {})[str(place.partition)] = extent.beginning
        ends.setdefault(place.topic, {})[str(place.partition)] = extent.end
    messages = (
        work.session.read.format("myqueue")
        .schema(PARTITION_COLUMNS)
        .option("url", work.url)
        .option("assign", json.dumps(assign))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("failOnDataLoss", "false")
        .load()
    )
    return sums_in(work.collect(per_partition(messages)))
