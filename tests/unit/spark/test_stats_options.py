"""Statistics as tables: options and their errors, columns as the API has them, and a time in pieces."""

import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pyspark.sql.types import BooleanType, DoubleType, IntegerType, LongType, StringType, TimestampType

from myqueue.protocol import stats_answers
from myqueue.protocol.errors import InvalidRequest
from myqueue.spark.stats_options import TABLES, TimeWindows, stats_options, stats_schema

DAY_MS = 86_400_000
OF_API: dict[str, tuple[type[BaseModel], type[BaseModel] | None]] = {  # the newest figures, and a point
    "topics": (stats_answers.MinuteFigures, None),
    "partitions": (stats_answers.PartitionStats, stats_answers.PartitionFigures),
    "consumers": (stats_answers.ConsumerStats, stats_answers.LagFigures),
    "topic_totals": (stats_answers.TopicTotals, stats_answers.TopicFigures),
    "consumer_totals": (stats_answers.ConsumerTotals, stats_answers.ConsumerFigures),
    "runs": (stats_answers.Run, None),
}
SPARK_TYPES = {
    int: (LongType, IntegerType, TimestampType),
    float: (DoubleType,),
    str: (StringType,),
    bool: (BooleanType,),
}
NOT_IN_TABLES = {"bytes", "rate_per_minute", "history"}
OF_A_SERIES = {"topic", "partition_id", "consumer_id", "name"}


@pytest.mark.parametrize("table", TABLES)
def test_the_columns_are_those_of_the_api(table: str) -> None:
    newest, point = OF_API[table]
    fields = newest.model_fields
    current = {field.name: field.dataType for field in stats_schema(stats_options({"table": table})).fields}
    assert set(current) == set(fields) - NOT_IN_TABLES
    for name, kind in current.items():
        annotation = fields[name].annotation
        known = [one for one in (annotation, *typing.get_args(annotation)) if one in SPARK_TYPES]
        assert type(kind) in SPARK_TYPES[typing.cast("type", known[0]) if known else str], name
    over_time = stats_schema(stats_options({"table": table, "last": "1h"})).names
    expected = set(fields) if point is None else set(point.model_fields) | (OF_A_SERIES & set(fields))
    assert set(over_time) == expected - NOT_IN_TABLES


def test_a_time() -> None:
    now = 1_700_000_000_000
    last = stats_options({"table": "Topics", "LAST": "2d", "step": "1h"})
    assert (last.table, last.history, last.step_ms) == ("topics", True, 3_600_000)
    assert last.time_range(now) == (now - 2 * DAY_MS, now + 1)
    assert stats_options({"table": "topics", "from": "5"}).time_range(now) == (5, now + 1)
    assert stats_options({"table": "topics", "from": "5", "to": "9"}).time_range(now) == (5, 9)
    newest = stats_options({"table": "topics"})
    assert (newest.history, newest.time_range(now)) == (False, (now - 3_600_000, now + 1))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "option table is not given; it takes one of topics, partitions,"),
        ({"table": "lag"}, "option table: takes one of topics, .* not 'lag'"),
        ({"table": "runs", "colour": "red"}, "option colour is not known; a read of statistics takes url, table,"),
        ({"table": "runs", "topic": "a"}, "option topic means nothing for table runs"),
        ({"table": "runs", "last": "1h", "step": "1m"}, "option step means nothing for table runs"),
        ({"table": "topics", "job": "a"}, "option job means nothing for table topics"),
        ({"table": "topics", "topic": "a b"}, "option topic: 'a b': "),
        ({"table": "topics", "last": "soon"}, "option last: takes a time as 90s, 5m, 24h or 30d, not 'soon'"),
        ({"table": "topics", "last": "0s"}, "option last: takes a time"),
        ({"table": "topics", "from": "today"}, "option from: takes a whole number from 0"),
        ({"table": "topics", "last": "1h", "to": "5"}, "options last, from and to: give last, or from and to"),
        ({"table": "topics", "step": "1h"}, "option step: give from or last, too"),
        ({"table": "topics", "to": "5"}, "option to: give from or last, too"),
        ({"table": "topics", "from": "5", "to": "5"}, "option to: must lie after from"),
        ({"table": "topics", "kafka.bootstrap.servers": "a"}, "is Kafka's; write option url"),
    ],
)
def test_an_option_that_cannot_be_says_why(options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        stats_options(options)


@given(
    st.integers(0, 10_000),
    st.integers(1, 10_000),
    st.none() | st.integers(1, 3000),
    st.lists(st.sampled_from(["shorten", "keep", "lengthen"]), max_size=60),
)
def test_pieces_are_the_whole_time_and_end_with_a_step(
    start: int, length: int, step: int | None, answers: list[str]
) -> None:
    windows = TimeWindows(start, start + length, step)
    answers = [*answers, *["lengthen"] * 40]  # so that it ends
    position = start
    while windows.current is not None:
        piece_start, piece_end = windows.current
        assert piece_start == position < piece_end
        assert piece_end == start + length or piece_end % (step or 1) == 0
        answer = answers.pop(0)
        if answer == "shorten":
            can_be_shorter = piece_end - piece_start > (step or 1)
            assert windows.shorten() == can_be_shorter
            if can_be_shorter:
                assert windows.current[0] == piece_start
                assert windows.current[1] < piece_end
                continue
        windows.advance(lengthen=answer == "lengthen")
        position = piece_end
    assert position == start + length
