"""The data source by which Spark reads the figures of the scheduled jobs, as tables."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import IntegerType, StructType, TimestampType

from myqueue.protocol import http_headers
from myqueue.protocol.errors import InvalidRequest, NotMyQueue, TopicNotFound
from myqueue.protocol.limits import MAX_STATS_ROWS, MAX_STATS_RUNS
from myqueue.spark.columns import as_time, check_columns
from myqueue.spark.stats_options import TABLES, StatsOptions, TimeWindows, stats_options, stats_schema, types_of
from myqueue.transport import RetryPolicy, Transport

_MINUTE_MS = 60_000
_READ_ONLY = "myqueue.stats can only be read: its figures are those of the scheduled jobs"
_FEW = MAX_STATS_ROWS // 4  # points: twice the time has not too many


class StatsDataSource(DataSource):
    """`spark.read.format("myqueue.stats").option("table", "topic_totals").option("last", "24h").load()`"""

    @classmethod
    def name(cls) -> str:
        return "myqueue.stats"

    def schema(self) -> StructType:
        return stats_schema(stats_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = stats_options(self.options)
        check_columns(schema, types_of(options))
        return StatsTableReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002
        raise InvalidRequest("myqueue.stats is a table, not a stream: spark.read, and load() again for newer figures")

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
        raise InvalidRequest(_READ_ONLY)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002
        raise InvalidRequest(_READ_ONLY)


@dataclass(frozen=True)
class StatsRange(InputPartition):
    """A time that ends when the query is planned, so that a task that runs again reads the same points."""

    start_ms: int
    end_ms: int


class StatsTableReader(DataSourceReader):
    """One task: the figures of a large cluster over a year are a few million rows."""

    def __init__(self, options: StatsOptions, wanted: StructType) -> None:
        self._options = options
        self._wanted = wanted

    def partitions(self) -> list[InputPartition]:
        """Asks once, so that a wrong address or topic is an error of the plan and not of a task."""
        start, end = self._options.time_range(time.time_ns() // 1_000_000)
        query: dict[str, str | int] = {"from": end - 1, "to": end}
        with closing(self._transport()) as transport:
            self._table(transport, query)
        return [StatsRange(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StatsRange)
        with closing(self._transport()) as transport:
            if self._options.table == "runs":
                tables = self._runs(transport, partition)
            elif self._options.history or self._options.table == "topics":
                tables = self._in_windows(transport, partition)
            else:
                tables = self._pages(transport, {})
            for table in tables:
                yield from self._converted(table).to_batches()

    def _transport(self) -> Transport:
        return Transport(self._options.url, retry=RetryPolicy(deadline_s=self._options.timeout_s))

    def _in_windows(self, transport: Transport, whole: StatsRange) -> Iterator[pa.Table]:
        step_ms = self._options.step_ms
        unit_ms = step_ms or (_MINUTE_MS if self._options.table == "topics" else None)
        windows = TimeWindows(whole.start_ms, whole.end_ms, unit_ms)
        while (window := windows.current) is not None:
            query: dict[str, str | int] = {"from": window[0], "to": window[1]}
            if step_ms is not None:
                query["step"] = step_ms
            try:
                pages = list(self._pages(transport, query))
            except InvalidRequest as error:
                if "max_points" not in error.details or not windows.shorten():
                    raise
                continue
            largest = max(page.num_rows for page in pages)
            # Of topics by the minute, more than that are cut off.
            if self._options.table == "topics" and largest >= MAX_STATS_ROWS and windows.shorten():
                continue
            yield from pages
            windows.advance(lengthen=largest < _FEW)

    def _runs(self, transport: Transport, whole: StatsRange) -> Iterator[pa.Table]:
        """Newest first."""
        query: dict[str, str | int] = {"limit": MAX_STATS_RUNS}
        if self._options.history:
            query |= {"from": whole.start_ms, "to": whole.end_ms}
        while True:
            table, _ = self._table(transport, query)
            yield table
            if table.num_rows < MAX_STATS_RUNS:
                return
            query["before"] = table.column("run_id")[-1].as_py()

    def _pages(self, transport: Transport, query: dict[str, str | int]) -> Iterator[pa.Table]:
        after: str | None = None
        while True:
            table, after = self._table(transport, query if after is None else {**query, "after": after})
            yield table
            if after is None:
                return

    def _table(self, transport: Transport, query: dict[str, str | int]) -> tuple[pa.Table, str | None]:
        """A page, and which one is next."""
        try:
            response = transport.call(
                TABLES[self._options.table].route, query={**self._options.filters, **query, "format": "arrow"}
            )
        except TopicNotFound as error:
            raise TopicNotFound(f"option topic: {error.message}", request_id=error.request_id) from error
        if response.table is None:
            raise NotMyQueue(f"{self._options.url}: its answer is no Arrow table")
        table = pa.ipc.open_stream(response.table.body).read_all()
        return table, response.table.headers.get(http_headers.NEXT)

    def _converted(self, table: pa.Table) -> pa.Table:
        """The wanted columns; times are milliseconds in the API."""
        columns = []
        for field in self._wanted.fields:
            column = table.column(field.name).combine_chunks()
            if isinstance(field.dataType, TimestampType):
                column = as_time(column)
            elif isinstance(field.dataType, IntegerType):
                column = column.cast(pa.int32())
            columns.append(column)
        return pa.table(columns, names=self._wanted.names)
