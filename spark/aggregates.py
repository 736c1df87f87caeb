"""Sums over messages, as Spark computes them in its own columns; nothing is done per message in Python."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
PARTITION_COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
MINUTE_COLUMNS = "key BINARY, value BINARY, topic STRING, append_time TIMESTAMP"
_WORD_BITS = 6  # of an offset, as a place in a word of 64 bits


def _length_sum() -> str:
    return "sum(coalesce(octet_length(key), 0) + octet_length(value))"


def per_partition(messages: DataFrame) -> DataFrame:
    """One row per partition: topic, partition, low, high, messages, distinct, bytes, first_ms, last_ms.

    Offsets are marked in words of 64 bits, so that how many different ones there are is exact. A word is a number,
    which Spark aggregates in a hash table; its own bitmaps are byte arrays, for which it would sort all messages.
    """
    words = messages.groupBy("topic", "partition", f.expr(f"shiftright(offset, {_WORD_BITS})").alias("word")).agg(
        f.expr("bit_or(shiftleft(1L, int(offset & 63)))").alias("marks"),
        f.expr("count(1)").alias("messages"),
        f.expr(_length_sum()).alias("bytes"),
        f.expr("min(offset)").alias("low"),
        f.expr("max(offset)").alias("high"),
        f.expr("min(unix_millis(timestamp))").alias("first_ms"),
        f.expr("max(unix_millis(timestamp))").alias("last_ms"),
    )
    return words.groupBy("topic", "partition").agg(
        f.expr("min(low)").alias("low"),
        f.expr("max(high)").alias("high"),
        f.expr("sum(messages)").alias("messages"),
        f.expr("sum(bit_count(marks))").alias("distinct"),
        f.expr("sum(bytes)").alias("bytes"),
        f.expr("min(first_ms)").alias("first_ms"),
        f.expr("max(last_ms)").alias("last_ms"),
    )


def per_minute(messages: DataFrame, now_ms: int, *, days_back: int, days_ahead: int) -> DataFrame:
    """One row per topic and minute of the leaders' clocks around `now_ms`: topic, minute, messages, bytes."""
    first_ms, last_ms = now_ms - days_back * DAY_MS, now_ms + days_ahead * DAY_MS
    minute = f.expr(f"unix_millis(append_time) div {MINUTE_MS} * {MINUTE_MS}").alias("minute")
    wanted = messages.where(f"unix_millis(append_time) BETWEEN {first_ms} AND {last_ms}")
    return wanted.groupBy("topic", minute).agg(
        f.expr("count(1)").alias("messages"), f.expr(_length_sum()).alias("bytes")
    )
