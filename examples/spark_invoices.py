"""The invoice pipeline as one streaming query into two topics, each invoice exactly once.

    python -m examples.spark_invoices --url http://127.0.0.1:8080 --invoices 600

Every invoice of `all-invoices` goes to `valid-invoices` or, with the reason, to `invalid-invoices`; the rule is that of
`examples.invoices`. Invoices are sent in two parts, with a run of the query after each: the second run goes on where
the first one ended. Then both topics are read back and compared with what was made.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from examples.invoices import ALL_TOPIC, INVALID_TOPIC, VALID_TOPIC
from examples.invoices.audit import Audit, audit
from examples.invoices.filter import judge, run_of
from examples.invoices.pipeline import new_run_id
from examples.invoices.sample_invoices import Made, make_invoices
from myqueue import Admin, MyQueueError, Producer, TopicExists
from spark.config import SparkFailure, load
from spark.session import build


def judged(value: bytes, partition: int, offset: int) -> tuple[str, str]:
    """The target topic and the verdict. Spark calls it for each message, on its executors."""
    topic, verdict = judge(bytes(value), partition, offset)
    return topic, json.dumps(verdict, ensure_ascii=False)


def sort_invoices(session: SparkSession, url: str, start: str, checkpoint: str) -> int:
    """Judge the invoices since the last run with this checkpoint. Returns how many."""
    invoices = (
        session.readStream.format("myqueue")
        .option("url", url)
        .option("subscribe", ALL_TOPIC)
        .option("startingOffsets", start)  # of the first run: later ones go on at the checkpoint
        .schema("value BINARY, partition INT, offset BIGINT")
        .load()
    )
    verdict = f.udf(judged, "topic STRING, value STRING", useArrow=True)
    query = (
        invoices.select(verdict("value", "partition", "offset").alias("verdict"))
        .select("verdict.topic", "verdict.value")
        .writeStream.format("myqueue")  # the column `topic` says where each row goes
        .option("url", url)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def end_of(admin: Admin, topic: str) -> str:
    """The current end of a topic as a value of startingOffsets; the topic is created if it is missing."""
    with suppress(TopicExists):
        admin.create_topic(topic)
    return json.dumps({topic: {str(each.partition): each.end_offset for each in admin.partitions(topic)}})


def send(url: str, invoices: Sequence[Made]) -> None:
    with Producer(url, topic=ALL_TOPIC) as producer:
        producer.send_many([json.dumps(made.invoice, ensure_ascii=False) for made in invoices])


def read_back(session: SparkSession, url: str, topic: str, start: str, run: str) -> list[dict[str, Any]]:
    """The verdicts of this run in a topic."""
    messages = (
        session.read.format("myqueue")
        .option("url", url)
        .option("subscribe", topic)
        .option("startingOffsets", start)
        .schema("value BINARY")
        .load()
    )
    verdicts = (json.loads(row.value) for row in messages.collect())
    return [verdict for verdict in verdicts if run_of(verdict["invoice"]) == run]


def run_all(session: SparkSession, url: str, count: int, seed: int, checkpoint: str) -> Audit:
    run = new_run_id()
    made = list(make_invoices("spark", "1", count, seed, run))
    with Admin(url) as admin:
        starts = {topic: end_of(admin, topic) for topic in (ALL_TOPIC, VALID_TOPIC, INVALID_TOPIC)}
    for part in (made[: count // 2], made[count // 2 :]):
        send(url, part)
        found = sort_invoices(session, url, starts[ALL_TOPIC], checkpoint)
        print(f"{len(part)} invoices sent, {found} judged")
    valid, invalid = (read_back(session, url, topic, starts[topic], run) for topic in (VALID_TOPIC, INVALID_TOPIC))
    return audit(made, valid, invalid)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.spark_invoices", description=__doc__.split("\n")[0])
    parser.add_argument("--url", default=os.environ.get("MYQUEUE_URL", "http://127.0.0.1:8080"))
    parser.add_argument("--invoices", type=int, default=600, help="in all (default 600)")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    try:
        session = build("invoices", settings=load(url=given.url))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
            result = run_all(session, given.url, given.invoices, given.seed, checkpoint)
    except (MyQueueError, SparkFailure, PySparkException, ValueError) as error:
        print(f"{given.url}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    for reason, times in sorted(result.reasons.items()):
        print(f"{times:8} {reason}")
    if not result.adds_up:
        wrong = {
            "lost": result.lost,
            "twice": result.repeated,
            "misjudged": result.misjudged,
            "not sent": result.unknown,
        }
        print("It does not add up:", {what: found for what, found in wrong.items() if found}, file=sys.stderr)
        return 1
    print(f"It adds up: {result.total.valid} valid and {result.total.invalid} invalid invoices, each there once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
