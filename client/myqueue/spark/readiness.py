"""Whether what an attempt has staged can be published: asked before its manifest is stored, as from then on there is
no way but to publish just that."""

import time
from collections.abc import Callable
from uuid import UUID

from myqueue.protocol import routes
from myqueue.protocol.errors import MyQueueError, OffsetOutOfRange, TopicNotFound
from myqueue.spark.manifest import MicroBatch, Staged
from myqueue.spark.sink_options import SinkOptions
from myqueue.spark.staging import open_staging
from myqueue.spark.topic_log import DELIVERY_S, TopicLog
from myqueue.spark.topics import DOUBT_S
from myqueue.transport import Transport

AGAIN = "nothing of this attempt is published; start the query again"


def ready_staging(
    transport: Transport, options: SinkOptions, micro_batch: MicroBatch, entries: list[Staged]
) -> TopicLog:
    """The staging topic, which has all that was staged."""
    expected = {entry.staging_id for entry in entries}
    log = lasting(lambda: open_staging(transport, options), expected)
    if entries:
        said = transport.call(routes.TOPIC_OFFSETS, path={"topic": log.topic}, deadline_s=DELIVERY_S).body
        beginnings = {one["partition_id"]: one["beginning_offset"] for one in said["partitions"]}
        if found := problem(log.topic, {log.topic_id, UUID(said["topic_id"])}, beginnings, entries):
            raise type(found)(f"{micro_batch}: {found.message}")
    return log


def problem(topic: str, topic_ids: set[UUID], beginnings: dict[int, int], entries: list[Staged]) -> MyQueueError | None:
    """Pure: why they cannot be read back."""
    if {entry.staging_id for entry in entries} != topic_ids:
        return TopicNotFound(f"the staging topic {topic!r} was deleted meanwhile; {AGAIN}")
    if any(entry.offset < beginnings[entry.staging_partition] for entry in entries):
        return OffsetOutOfRange(
            f"what its tasks have staged in {topic!r} is gone by retention (stagingRetentionMs) before all of them were"
            f" done; {AGAIN}, with less in a micro-batch or a staging topic that keeps it for longer"
        )
    return None


def lasting(opened: Callable[[], TopicLog], expected: set[UUID]) -> TopicLog:
    """A topic; one that is not as expected is believed only when it lasts: read managers do not all hear at once of
    topics that are deleted and made again."""
    doubted_until = time.monotonic() + DOUBT_S
    while True:
        log = opened()
        if expected <= {log.topic_id} or time.monotonic() >= doubted_until:
            return log
        time.sleep(DOUBT_S / 10)
