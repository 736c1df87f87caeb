"""Reads topics once: the offsets are fixed when the query is planned."""

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from myqueue.protocol.errors import InvalidRequest
from myqueue.retry import RetryPolicy
from myqueue.spark import losses
from myqueue.spark.fetching import record_batches
from myqueue.spark.offsets import Listed, Place, Survey, name_of, places, resolve
from myqueue.spark.options import ReadOptions
from myqueue.spark.ranges import Range, cut
from myqueue.spark.topics import Topics
from myqueue.transport import Transport


class MyQueueReader(DataSourceReader):
    """Pickled and sent to the tasks."""

    def __init__(self, options: ReadOptions, wanted: pa.Schema) -> None:
        self._options = options
        self._wanted = wanted

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with closing(Transport(options.url, retry=RetryPolicy(deadline_s=options.timeout_s))) as transport:
            topics = Topics(transport, options.subscription, timeout_s=options.timeout_s)
            survey = topics.survey()
            topics.require(survey)
            start = resolve(options.starting, "startingOffsets", survey, topics.offset_at)
            end = resolve(options.ending, "endingOffsets", survey, topics.offset_at)
        ranges = [self._range(place, start[place], end[place], survey) for place in places(survey)]
        return list(cut(ranges, options.min_partitions))

    def _range(self, place: Place, first: int, last: int, survey: Survey) -> Range:
        topic, partition = place
        beginning = survey[topic].partitions[partition].beginning
        if first > last and isinstance(self._options.starting, Listed):
            raise InvalidRequest(
                f"option startingOffsets: {name_of(place)}: {first} is past where the read ends, {last}"
            )
        if first < min(beginning, last):
            loss = losses.retained(place, first, min(beginning, last), beginning)
            losses.report(loss, fail=self._options.fail_on_data_loss)
        return Range(topic, survey[topic].topic_id, partition, min(max(first, beginning), last), last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Range):
            return iter(())  # Spark's own, when there is nothing to read
        return read_range(self._options, partition, self._wanted)


def read_range(options: ReadOptions, range_: Range, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    return record_batches(
        options.url,
        range_,
        wanted,
        fail_on_data_loss=options.fail_on_data_loss,
        fetch_bytes=options.fetch_bytes,
        timeout_s=options.timeout_s,
    )
