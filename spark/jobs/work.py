"""What a job is given."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import DataFrame, Row, SparkSession

from spark.checkpoint import folder_of
from spark.runs import Run
from spark.stats_calls import StatsCalls


@dataclass(frozen=True, slots=True)
class Work:
    session: SparkSession
    calls: StatsCalls
    run: Run
    folder: Path

    @property
    def url(self) -> str:
        return self.calls.url

    @property
    def checkpoint(self) -> Path:
        return folder_of(self.folder, self.run.job, self.url)

    def collect(self, frame: DataFrame) -> list[Row]:
        """Its rows. When the run is stopped, Spark's tasks are, and that is what is raised."""
        context = self.session.sparkContext
        group = f"{self.run.job}-{self.run.run_id}"
        context.setJobGroup(group, self.run.job, interruptOnCancel=True)
        self.run.on_stop(lambda: _cancel(context, group))
        try:
            return frame.collect()
        finally:
            self.run.check()


def _cancel(context: SparkContext, group: str) -> None:
    # Without its Java there is nothing left to cancel, and whoever waits for the rows has heard of that.
    with suppress(Py4JError, OSError):
        context.cancelJobGroup(group)
