"""A stream that copies lines of files to a topic, as a program of its own: one that may be killed."""

import sys
from dataclasses import astuple, dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from spark.config import load
from spark.session import build
from tests.spark.quick_java import QUICK_JAVA

WITHIN_S = 200


@dataclass(frozen=True)
class Copying:
    folder: str  # with files of lines; each is a micro-batch
    url: str
    topic: str
    checkpoint: str

    def arguments(self) -> list[str]:
        return [sys.executable, "-m", "tests.spark.copying", *astuple(self)]

    def run(self, session: SparkSession, tasks: int = 1) -> None:
        """Until all is copied that is there."""
        lines = session.readStream.format("text").option("maxFilesPerTrigger", "1").load(self.folder)
        rows = lines.selectExpr("value", "right(value, 1) AS key")
        if tasks > 1:
            rows = rows.repartition(tasks)
        write = rows.writeStream.format("myqueue").option("url", self.url).option("topic", self.topic)
        write = write.option("batchBytes", "500").option("checkpointLocation", self.checkpoint)
        query = write.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(WITHIN_S)
        finally:
            query.stop()


if __name__ == "__main__":
    copying = Copying(*sys.argv[1:])
    settings = load(dir=Path(copying.checkpoint).with_suffix(".spark"))
    copying.run(build("copying", settings=settings, extra=QUICK_JAVA))
