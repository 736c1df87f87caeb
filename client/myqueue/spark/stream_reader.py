"""Reads topics as a stream. What a micro-batch holds is decided in a process beside the driver; tasks read it."""

import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from myqueue.protocol.errors import MyQueueError
from myqueue.retry import RetryPolicy
from myqueue.spark import advance, losses
from myqueue.spark.cursors import Cursors
from myqueue.spark.offsets import Checkpoint, Progress, Survey, resolve
from myqueue.spark.options import ReadOptions
from myqueue.spark.ranges import Range, cut
from myqueue.spark.reader import read_range
from myqueue.spark.topics import Topics
from myqueue.transport import Transport

REST_S = 0.1  # after nothing new was found: Spark would ask again at once


class MyQueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Pickled for the tasks before it has asked anything, so what it talks to is made on first use."""

    def __init__(self, options: ReadOptions, wanted: pa.Schema) -> None:
        self._options = options
        self._wanted = wanted
        self._transport: Transport | None = None
        self._topics: Topics | None = None
        self._cursors: Cursors | None = None
        self._survey: Survey | None = None  # the last one
        self._target: Survey | None = None  # with Trigger.AvailableNow: what there was when it began
        self._initial: Checkpoint | None = None
        self._rest_until = 0.0  # monotonic

    def initialOffset(self) -> Checkpoint:
        if self._initial is None:  # Spark may ask again before it has stored the answer
            topics = self._open()
            survey = topics.survey() if self._target is None else self._target
            topics.require(survey)
            starting = resolve(self._options.starting, "startingOffsets", survey, topics.offset_at)
            self._initial = Progress({topic: survey[topic].topic_id for topic in survey}, starting).to_checkpoint()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._options.max_offsets is None else ReadMaxRows(self._options.max_offsets)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._open().survey()

    def latestOffset(self, start: Checkpoint, limit: ReadLimit) -> Checkpoint:
        before = Progress.from_checkpoint(start)
        time.sleep(max(0.0, self._rest_until - time.monotonic()))
        survey = self._reachable(before)
        if self._survey is None:
            self._open().require({*survey, *before.topic_ids})
        self._survey = survey
        # Spark asks for more when it has processed all before it, and tells so by `commit` only with the next
        # micro-batch: without this, the lag of a stream that has caught up would stay.
        self._follow(before)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        step = advance.next_end(before, survey, most, self._options.subscription.includes)
        self._report(step.lost)
        self._rest_until = time.monotonic() + REST_S if step.end == before and self._target is None else 0.0
        return step.end.to_checkpoint()

    def reportLatestOffset(self) -> Checkpoint | None:
        return None if self._survey is None else advance.ends(self._survey).to_checkpoint()

    def partitions(self, start: Checkpoint, end: Checkpoint) -> list[InputPartition]:
        # A micro-batch that is repeated after a restart comes before any question for more.
        after = Progress.from_checkpoint(end)
        survey = self._open().survey(after.topic_ids) if self._survey is None else self._survey
        plan = advance.plan(Progress.from_checkpoint(start), after, survey)
        self._report(plan.lost)
        return list(cut(plan.ranges, self._options.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return read_range(self._options, partition, self._wanted)

    def commit(self, end: Checkpoint) -> None:
        self._follow(Progress.from_checkpoint(end))

    def stop(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _open(self) -> Topics:
        if self._topics is None:
            options = self._options
            self._transport = Transport(options.url, retry=RetryPolicy(deadline_s=options.timeout_s))
            self._topics = Topics(self._transport, options.subscription, timeout_s=options.timeout_s)
            if options.consumer is not None:
                self._cursors = Cursors(self._transport, options.consumer)
        return self._topics

    def _reachable(self, before: Progress) -> Survey:
        """What the stream may read: all that there is, or all that there was when it began."""
        if self._target is None:
            return self._open().survey(before.topic_ids)
        if before.within(self._target).topic_ids != before.topic_ids:
            # Topics are gone, or others, or that was old news.
            self._target = self._open().survey(before.topic_ids)
        return self._target

    def _follow(self, progress: Progress) -> None:
        self._open()
        if self._cursors is not None and self._survey is not None:
            self._cursors.commit(progress.within(self._survey))

    def _report(self, lost: Iterable[MyQueueError]) -> None:
        for loss in lost:
            losses.report(loss, fail=self._options.fail_on_data_loss)
