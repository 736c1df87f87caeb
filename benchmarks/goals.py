"""Goals, as ratios of one run, and whether it reached them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.measurement import SIZES, Result, key_of

Verdict = Literal["reached", "falls short", "not measured", "no goal"]

SEND_MANY, SEND_MANY_1K = (key_of("myqueue", "send_many", size) for size in SIZES)
WITH_KEYS = key_of("myqueue", "send_many with keys", 100)
SEND = key_of("myqueue", "send", 100)
ITERATE, ITERATE_1K = (key_of("myqueue", "for message in consumer", size) for size in SIZES)
FETCH_ARROW = key_of("myqueue", "fetch_arrow", 100)
POST = key_of("myqueue", "POST /producer/produce", 100)
GET = key_of("myqueue", "GET /consumer/consume", 100)
LATENCY = key_of("myqueue", "send, then result", 100)
END_TO_END = key_of("myqueue", "send → for message in consumer, 100/s", 100)
TOPICS = key_of("myqueue", "GET /topics", 0)
SPARK_READ = key_of("myqueue-spark", "sum(length(value)), max(offset) of a topic", 100)
SPARK_WRITE = key_of("myqueue-spark", "df.write into a topic", 100)
SPARK_STREAM = key_of("myqueue-spark", "a stream into a topic, exactly once", 100)
SPARK_METRICS = key_of("myqueue-spark-jobs", "partition_metrics with 10 times the history", 100)
STORED = key_of("myqueue-stored", "send_many, many messages stored", 100)
OCCUPIED = key_of("myqueue-occupied", "bytes on disk / (message bytes × replicas)", 1024)
COMMIT_SMALL, COMMIT_LARGE = (key_of("myqueue-commits", "a commit / pwritev and fdatasync", n) for n in (2048, 1 << 20))
PRODUCE_PEERS = (key_of("nats", "publish_async", 100), key_of("redis", "XADD, pipelined", 100))
CONSUME_PEERS = (key_of("nats", "push consumer", 100), key_of("redis", "XREAD", 100))
HIREDIS = (key_of("redis", "XREAD, hiredis parser", 100),)
KAFKA_PRODUCE, KAFKA_PRODUCE_1K = ((key_of("kafka", "produce()", size),) for size in SIZES)
KAFKA_BATCH = (key_of("kafka", "produce_batch()", 100),)
KAFKA_CONSUME, KAFKA_CONSUME_1K = ((key_of("kafka", "consume()", size),) for size in SIZES)
KAFKA_LATENCY = (key_of("kafka", "produce(), then its report", 100),)
KAFKA_END_TO_END = (key_of("kafka", "produce() → poll(), 100/s", 100),)
RABBITMQ = (key_of("rabbitmq", "HTTP publish", 100),)
RABBITMQ_GET = (key_of("rabbitmq", "HTTP get", 100),)


@dataclass(frozen=True, slots=True)
class Goal:
    """`figure` (or one of its details) over the best of `against`, over a detail of its own, or as it is."""

    text: str
    figure: str
    limit: float | None = None  # None: shown without a goal
    at_most: bool = False
    against: tuple[str, ...] = ()
    detail: str | None = None
    over_detail: str | None = None
    unit: str = "×"
    scale: float = 1.0


GOALS = (
    Goal("send_many / best of Redis and NATS", SEND_MANY, 10, against=PRODUCE_PEERS),
    Goal("send_many / Kafka's produce()", SEND_MANY, 5, against=KAFKA_PRODUCE),
    Goal("send_many / Kafka's produce_batch()", SEND_MANY, against=KAFKA_BATCH),
    Goal("send_many / Kafka's produce(), 1 KiB", SEND_MANY_1K, 2.5, against=KAFKA_PRODUCE_1K),
    Goal("send_many with keys / without", WITH_KEYS, 0.8, against=(SEND_MANY,)),
    Goal("send / best of Redis and NATS", SEND, 3, against=PRODUCE_PEERS),
    Goal("consume, every message an object / best of Redis and NATS", ITERATE, 12, against=CONSUME_PEERS),
    Goal("consume, every message an object / Redis with the C parser hiredis", ITERATE, against=HIREDIS),
    Goal("consume, every message an object / Kafka's consume()", ITERATE, against=KAFKA_CONSUME),
    Goal("consume, every message an object / Kafka's consume(), 1 KiB", ITERATE_1K, 1.2, against=KAFKA_CONSUME_1K),
    Goal("fetch_arrow / best of Redis and NATS", FETCH_ARROW, 20, against=CONSUME_PEERS),
    Goal("single-message HTTP produce / RabbitMQ's HTTP publish, 16 connections", POST, 5, against=RABBITMQ),
    Goal("single-message HTTP consume / RabbitMQ's HTTP get, 16 connections", GET, against=RABBITMQ_GET),
    Goal("CPU time of one produced message then, all processes", POST, 500, at_most=True, detail="cpu_us", unit=" µs"),
    Goal("produce p50 at a low rate / one fdatasync", LATENCY, 8, at_most=True, over_detail="fdatasync_p50_ms"),
    Goal("produce p50 at a low rate / Kafka's", LATENCY, 1, at_most=True, against=KAFKA_LATENCY),
    Goal("produce p99 at a low rate / its p50", LATENCY, 3, at_most=True, detail="p99_ms", over_detail="p50_ms"),
    Goal("send to waiting consumer, p50 at 100/s / Kafka's", END_TO_END, 1, at_most=True, against=KAFKA_END_TO_END),
    Goal("send to waiting consumer, p99 / its p50", END_TO_END, 3, at_most=True, detail="p99_ms", over_detail="p50_ms"),
    Goal("GET /topics through nginx, p50", TOPICS, 1.5, at_most=True, unit=" ms"),
    Goal("throughput with many messages stored / with none", STORED, 0.9),
    Goal("memory of a broker then", STORED, 300, at_most=True, detail="broker_rss_bytes", unit=" MB", scale=1e-6),
    Goal("bytes on disk / (message bytes × replicas), 100 B", STORED, 1.3, at_most=True, detail="disk_ratio"),
    Goal("bytes on disk / (message bytes × replicas), 1 KiB in large batches", OCCUPIED, 1.25, at_most=True),
    Goal("a commit of 1 MiB / pwritev and fdatasync of the same bytes", COMMIT_LARGE, 1.6, at_most=True),
    Goal("a commit of 2 KiB / pwritev and fdatasync of the same bytes", COMMIT_SMALL, 1.6, at_most=True),
    Goal(
        "Spark: time of an aggregate over a topic / over uncompressed Parquet of the same messages",
        SPARK_READ, 2.7, at_most=True, detail="topic_s", over_detail="parquet_s",
    ),
    Goal(
        "Spark: the same with a schema of the two columns that it needs",
        SPARK_READ, at_most=True, detail="pruned_s", over_detail="parquet_s",
    ),
    Goal("Spark: rows written by df.write, a second", SPARK_WRITE, 350, unit=" k", scale=1e-3),
    Goal("Spark: rows of a warm stream into a topic, a second", SPARK_STREAM, 200, unit=" k", scale=1e-3),
    Goal("Spark: first micro-batch of a session", SPARK_STREAM, 5, at_most=True, detail="first_s", unit=" s"),
    Goal("Spark: time of a metrics run with 10 times the history, the same new part", SPARK_METRICS, 1.3, at_most=True),
    Goal(
        "Spark: memory given to the driver", SPARK_READ, 512, at_most=True,
        detail="driver_heap_bytes", unit=" MiB", scale=1 / (1 << 20),
    ),
    Goal("Spark: most memory of its Java", SPARK_READ, detail="driver_rss_bytes", unit=" GB", scale=1e-9),
    Goal("Spark: most memory of one Python worker", SPARK_READ, detail="worker_rss_bytes", unit=" MB", scale=1e-6),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    goal: Goal
    value: float | None
    verdict: Verdict


def judge(results: Sequence[Result], goals: Sequence[Goal] = GOALS) -> list[Outcome]:
    by_key = {result.key: result for result in results}
    return [Outcome(goal, value := _value(goal, by_key), _verdict(goal, value)) for goal in goals]


def _value(goal: Goal, by_key: Mapping[str, Result]) -> float | None:
    ours = _figure(by_key.get(goal.figure), goal.detail)
    if ours is None:
        return None
    if goal.over_detail is not None:
        divisor = _figure(by_key.get(goal.figure), goal.over_detail)
        return None if not divisor else ours / divisor
    if goal.against:
        found = [value for key in goal.against if (value := _figure(by_key.get(key), None)) is not None]
        return ours / max(found) if found else None
    return ours * goal.scale


def _figure(result: Result | None, detail: str | None) -> float | None:
    if result is None or result.figure is None:
        return None
    value = result.figure.value if detail is None else result.figure.details.get(detail)
    return float(value) if isinstance(value, int | float) else None


def _verdict(goal: Goal, value: float | None) -> Verdict:
    if value is None:
        return "not measured"
    if goal.limit is None:
        return "no goal"
    return "reached" if (value <= goal.limit if goal.at_most else value >= goal.limit) else "falls short"
