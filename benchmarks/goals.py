"""Goals, as ratios of one run, and whether it reached them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.measurement import Result, key_of

Verdict = Literal["reached", "falls short", "not measured", "no goal"]

SEND_MANY = key_of("myqueue", "send_many", 100)
SEND = key_of("myqueue", "send", 100)
ITERATE = key_of("myqueue", "for message in consumer", 100)
FETCH_ARROW = key_of("myqueue", "fetch_arrow", 100)
POST = key_of("myqueue", "POST /producer/produce", 100)
LATENCY = key_of("myqueue", "send, then result", 100)
SPARK_READ = key_of("myqueue-spark", "sum(length(value)), max(offset) of a topic", 100)
SPARK_METRICS = key_of("myqueue-spark-jobs", "partition_metrics with 10 times the history", 100)
STORED = key_of("myqueue-stored", "send_many, many messages stored", 100)
OCCUPIED = key_of("myqueue-occupied", "bytes on disk / (message bytes × replicas)", 1024)
COMMIT_SMALL, COMMIT_LARGE = (key_of("myqueue-commits", "a commit / pwritev and fdatasync", n) for n in (2048, 1 << 20))
PRODUCE_PEERS = (key_of("nats", "publish_async", 100), key_of("redis", "XADD, pipelined", 100))
CONSUME_PEERS = (key_of("nats", "push consumer", 100), key_of("redis", "XREAD", 100))
HIREDIS = (key_of("redis", "XREAD, hiredis parser", 100),)
KAFKA = (key_of("kafka-mock", "produce()", 100),)
KAFKA_BLIND = (key_of("kafka-mock", "produce(), no reports", 100),)
RABBITMQ = (key_of("rabbitmq", "HTTP publish", 100),)
LATENCY_OF_DISK = "fdatasync_p50_ms"


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
    Goal("send_many / confluent-kafka produce() on its in-process mock", SEND_MANY, 1, against=KAFKA),
    Goal("send_many / the same without delivery reports", SEND_MANY, against=KAFKA_BLIND),
    Goal("send / best of Redis and NATS", SEND, 3, against=PRODUCE_PEERS),
    Goal("consume, every message an object / best of Redis and NATS", ITERATE, 12, against=CONSUME_PEERS),
    Goal("consume, every message an object / Redis with the C parser hiredis", ITERATE, against=HIREDIS),
    Goal("fetch_arrow / best of Redis and NATS", FETCH_ARROW, 20, against=CONSUME_PEERS),
    Goal("single-message HTTP produce / RabbitMQ's HTTP publish", POST, 3, against=RABBITMQ),
    Goal("produce p50 at a low rate / one fdatasync", LATENCY, 10, at_most=True, over_detail=LATENCY_OF_DISK),
    Goal("throughput with many messages stored / with none", STORED, 0.9),
    Goal("memory of a broker then", STORED, 300, at_most=True, detail="broker_rss_bytes", unit=" MB", scale=1e-6),
    Goal("bytes on disk / (message bytes × replicas), 100 B", STORED, 1.3, at_most=True, detail="disk_ratio"),
    Goal("bytes on disk / (message bytes × replicas), 1 KiB in large batches", OCCUPIED, 1.25, at_most=True),
    Goal("a commit of 1 MiB / pwritev and fdatasync of the same bytes", COMMIT_LARGE, 1.6, at_most=True),
    Goal("a commit of 2 KiB / pwritev and fdatasync of the same bytes", COMMIT_SMALL, 1.6, at_most=True),
    Goal(
        "Spark: time of an aggregate over a topic / over uncompressed Parquet of the same messages",
        SPARK_READ, 3, at_most=True, detail="topic_s", over_detail="parquet_s",
    ),
    Goal(
        "Spark: the same with a schema of the two columns that it needs",
        SPARK_READ, at_most=True, detail="pruned_s", over_detail="parquet_s",
    ),
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
