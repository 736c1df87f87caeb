"""A stream from one topic to another, as a driver of its own."""

import sys
from pathlib import Path

from spark.config import load
from spark.session import build
from tests.spark.quick_java import QUICK_JAVA

WITHIN_S = 200


def main(url: str, source: str, target: str, checkpoint: str) -> None:
    session = build("relaying", settings=load(url=url, dir=Path(checkpoint).with_suffix(".spark")), extra=QUICK_JAVA)
    rows = session.readStream.format("myqueue").option("url", url).option("subscribe", source)
    rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "2000")
    write = rows.load().select("key", "value").writeStream.format("myqueue").option("url", url).option("topic", target)
    query = write.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(WITHIN_S)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
