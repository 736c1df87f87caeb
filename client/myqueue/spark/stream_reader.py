"""The stream reader. A process beside the driver plans the micro-batches; tasks read them."""

import logging
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from myqueue.protocol import routes
from myqueue.protocol.errors import (
    ConsumerNotFound,
    MyQueueError,
    PastEnd,
    RegistrationConflict,
    StaleCommit,
    StaleLease,
    TopicNotFound,
)
from myqueue.spark.offset_reader import OffsetReader
from myqueue.spark.offsets import OffsetJson, OffsetSnapshot, StreamOffset, resolve
from myqueue.spark.options import ReadOptions
from myqueue.spark.planner import (
    OffsetRange,
    TriggerDelay,
    latest,
    next_end,
    plan_batch,
    report_data_loss,
    split_ranges,
)
from myqueue.spark.reader import read_range
from myqueue.transport import RetryPolicy, Transport

logger = logging.getLogger("myqueue")

COMMIT_TIMEOUT_S = 5.0  # the query itself does not need the write manager
IDLE_PAUSE_S = 0.1  # after an empty `latestOffset`: Spark would ask again at once


class CursorCommitter:
    """Commits the cursors of the consumer that the option `consumer` names, so that the stream's lag can be seen.

    A stream takes no leases, as Spark assigns its partitions. So its commits name no lease, and a partition that an
    ordinary member of the same consumer has on lease is left to that member, with a warning.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._name = name
        self._consumers: dict[tuple[str, str], int] = {}  # by topic and its id
        self._committed: dict[tuple[str, str], dict[int, int]] = {}
        self._gone: set[tuple[str, str]] = set()  # a recreated topic must not get their offsets

    def commit(self, progress: StreamOffset) -> None:
        """Everything below these offsets is processed. Commits may be repeated and late."""
        for topic, topic_id in sorted(progress.topic_ids.items()):
            offsets = progress.of_topic(topic)
            if not offsets or (topic, topic_id) in self._gone or self._committed.get((topic, topic_id)) == offsets:
                continue
            try:
                self._commit(topic, topic_id, dict(offsets))
            except (ConsumerNotFound, TopicNotFound) as error:
                self._gone.add((topic, topic_id))
                logger.warning("consumer %r is gone from topic %r: %s", self._name, topic, error)
            except MyQueueError as error:
                if not error.retriable:
                    raise
                logger.warning("the cursors of consumer %r follow later: %s", self._name, error)
                return  # the query must not wait for this timeout once per topic
            else:
                self._committed[topic, topic_id] = offsets

    def _commit(self, topic: str, topic_id: str, offsets: dict[int, int]) -> None:
        consumer_id = self._consumer_id(topic, topic_id)
        while offsets:
            body = {"offsets": [{"partition_id": p, "offset": offset} for p, offset in sorted(offsets.items())]}
            try:
                self._transport.call(
                    routes.COMMIT, path={"consumer_id": consumer_id}, body=body, deadline_s=COMMIT_TIMEOUT_S
                )
            except (StaleCommit, StaleLease, PastEnd) as error:
                # A commit is atomic: repeat it without this partition.
                partition = error.details.get("partition_id")
                if partition not in offsets:
                    raise
                del offsets[partition]
                if not isinstance(error, StaleCommit):
                    logger.warning("consumer %r, %s/%s: not committed: %s", self._name, topic, partition, error)
            else:
                return

    def _consumer_id(self, topic: str, topic_id: str) -> int:
        known = self._consumers.get((topic, topic_id))
        if known is None:
            body = {"topic": topic, "name": self._name, "from": "earliest"}
            try:
                registered = self._transport.call(routes.REGISTER_CONSUMER, body=body, deadline_s=COMMIT_TIMEOUT_S).body
            except RegistrationConflict as error:
                raise RegistrationConflict(
                    f"option consumer: {self._name!r} is there on topic {topic!r} with other settings, perhaps for one "
                    "partition only; choose another name"
                ) from error
            known = self._consumers[topic, topic_id] = registered["consumer_id"]
        return known


class MyQueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Pickled for the tasks before its first request, so connections are made on first use."""

    def __init__(self, options: ReadOptions, wanted: pa.Schema) -> None:
        self._options = options
        self._wanted = wanted
        self._transport: Transport | None = None
        self._offset_reader: OffsetReader | None = None
        self._cursors: CursorCommitter | None = None
        self._snapshot: OffsetSnapshot | None = None  # the last one
        self._target: OffsetSnapshot | None = None  # with Trigger.AvailableNow: the offsets when it started
        self._initial: OffsetJson | None = None
        self._idle_until = 0.0  # monotonic
        self._delay = TriggerDelay(options.min_offsets, options.max_trigger_delay_s)

    def initialOffset(self) -> OffsetJson:
        if self._initial is None:  # Spark may ask again before it has stored the first answer
            offset_reader = self._open()
            snapshot = offset_reader.snapshot() if self._target is None else self._target
            offset_reader.require(snapshot)
            starting = resolve(self._options.starting, "starting", snapshot, offset_reader.offset_at)
            self._initial = StreamOffset({topic: snapshot[topic].topic_id for topic in snapshot}, starting).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._options.max_offsets is None else ReadMaxRows(self._options.max_offsets)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._open().snapshot()

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:
        before = StreamOffset.from_json(start)
        time.sleep(max(0.0, self._idle_until - time.monotonic()))
        snapshot = self._reachable(before)
        if self._snapshot is None:
            self._open().require({*snapshot, *before.topic_ids})
        self._snapshot = snapshot
        # Everything before `start` is processed, but Spark calls `commit` only with the next micro-batch: without
        # this, the lag of a stream that has caught up would stay.
        self._commit_cursors(before)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        planned = next_end(before, snapshot, most, self._options.subscription.includes)
        self._report(planned.data_loss)
        now_s = time.monotonic()
        # With Trigger.AvailableNow nothing more is coming that could be waited for.
        is_due = self._target is not None or self._delay.is_due(planned.waiting, now_s)
        if is_due and planned.end != before:
            self._idle_until = 0.0
            return planned.end.to_json()
        self._idle_until = now_s + IDLE_PAUSE_S if self._target is None else 0.0
        return start  # as it is: Spark compares texts, and an earlier release wrote them otherwise

    def reportLatestOffset(self) -> OffsetJson | None:
        return None if self._snapshot is None else latest(self._snapshot).to_json()

    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        # After a restart, the last micro-batch may be repeated before the first `latestOffset`.
        after = StreamOffset.from_json(end)
        snapshot = self._open().snapshot(after.topic_ids) if self._snapshot is None else self._snapshot
        plan = plan_batch(StreamOffset.from_json(start), after, snapshot)
        self._report(plan.data_loss)
        return list(split_ranges(plan.ranges, self._options.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRange)
        return read_range(self._options, partition, self._wanted)

    def commit(self, end: OffsetJson) -> None:
        self._commit_cursors(StreamOffset.from_json(end))

    def stop(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _open(self) -> OffsetReader:
        if self._offset_reader is None:
            options = self._options
            self._transport = Transport(options.url, retry=RetryPolicy(deadline_s=options.timeout_s))
            self._offset_reader = OffsetReader(
                self._transport,
                options.subscription,
                timeout_s=options.timeout_s,
                fail_on_no_leader=options.fail_on_no_leader,
            )
            if options.consumer is not None:
                self._cursors = CursorCommitter(self._transport, options.consumer)
        return self._offset_reader

    def _reachable(self, before: StreamOffset) -> OffsetSnapshot:
        """The offsets that the stream may read: the current ones, or those at its start with Trigger.AvailableNow."""
        if self._target is None:
            return self._open().snapshot(before.topic_ids)
        if before.within(self._target).topic_ids != before.topic_ids:
            # Topics were deleted or recreated since, or the snapshot was stale.
            self._target = self._open().snapshot(before.topic_ids)
        return self._target

    def _commit_cursors(self, progress: StreamOffset) -> None:
        self._open()
        if self._cursors is not None and self._snapshot is not None:
            self._cursors.commit(progress.within(self._snapshot))

    def _report(self, data_loss: Iterable[MyQueueError]) -> None:
        for loss in data_loss:
            report_data_loss(loss, fail=self._options.fail_on_data_loss)
