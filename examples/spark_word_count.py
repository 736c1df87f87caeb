"""Word count over a stream: how often each word was sent to a topic, kept up to date by Spark.

    python -m examples.spark_word_count --url http://127.0.0.1:8080

Sends some lines, counts what is in the topic and ends. `--forever` goes on with whatever is sent until Ctrl-C. A run
with the `--checkpoint` of an earlier one goes on where that one was: it reads only what is new.
"""

import argparse
import itertools
import os
import sys
import tempfile

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from myqueue import MyQueueError, Producer
from spark.config import SparkFailure, load
from spark.session import build

LINES = (
    "the log is what happened",
    "what happened is in the log and in its order",
    "who reads the log knows what happened",
)
SHOWN = 10


def word_counts(session: SparkSession, url: str, topic: str) -> DataFrame:
    """A streaming table of words and how often they were sent."""
    lines = (
        session.readStream.format("myqueue")
        .option("url", url)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .schema("value BINARY")  # only what the query needs is read
        .load()
    )
    words = lines.select(f.explode(f.split(f.lower(f.col("value").cast("string")), r"\W+")).alias("word"))
    return words.where("word != ''").groupBy("word").count()


def show(counts: DataFrame, batch_id: int) -> None:
    """Called by Spark after each micro-batch with the table as it is then."""
    print(f"micro-batch {batch_id}:")
    for row in counts.orderBy(f.desc("count"), "word").limit(SHOWN).collect():
        print(f"{row['count']:8} {row['word']}")


def count_words(session: SparkSession, url: str, topic: str, checkpoint: str, *, forever: bool) -> None:
    writer = word_counts(session, url, topic).writeStream.outputMode("complete").foreachBatch(show)
    writer = writer.option("checkpointLocation", checkpoint)
    writer = writer.trigger(processingTime="1 second") if forever else writer.trigger(availableNow=True)
    query = writer.start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def send_lines(url: str, topic: str, count: int) -> None:
    with Producer(url, topic=topic) as producer:
        producer.send_many(list(itertools.islice(itertools.cycle(LINES), count)))
    print(f"{count} lines sent to {topic}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.spark_word_count", description=__doc__.split("\n")[0])
    parser.add_argument("--url", default=os.environ.get("MYQUEUE_URL", "http://127.0.0.1:8080"))
    parser.add_argument("--topic", default="lines")
    parser.add_argument("--lines", type=int, default=300, help="to send first (default 300)")
    parser.add_argument("--checkpoint", help="folder in which Spark remembers how far it is (default: a new one)")
    parser.add_argument("--forever", action="store_true", help="go on with what comes until Ctrl-C")
    given = parser.parse_args(arguments)
    try:
        send_lines(given.url, given.topic, given.lines)
        session = build("word count", settings=load(url=given.url))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            count_words(session, given.url, given.topic, given.checkpoint or folder, forever=given.forever)
    except (MyQueueError, SparkFailure, PySparkException, ValueError) as error:
        print(f"{given.url}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
