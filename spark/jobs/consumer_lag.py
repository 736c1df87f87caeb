"""consumer_lag: how far consumers are behind in each of their partitions: messages, stored bytes, seconds.

Of every consumer that has a name or was used since the last run, up to a limit; what lies beyond it is counted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from myqueue.protocol import routes
from myqueue.protocol.errors import ConsumerNotFound, MyQueueError, Unavailable
from myqueue.protocol.models import ConsumerLagMeasure
from myqueue.transport import RetryPolicy, Transport
from spark.jobs.work import JobResult, Work, result_parts

_COLUMNS = (
    "consumer_id BIGINT, topic STRING, partition_id INT, cursor BIGINT, end_offset BIGINT, messages BIGINT,"
    " stored_bytes BIGINT, seconds DOUBLE, problem STRING"
)
_CONSUMERS_PER_TASK = 50
NO_LEADER = "a partition has no leader"
_RUNS_BACK = 100
_STAMP_LATE_MS = 30_000  # the write manager stores the time of the last use every few seconds


def run(work: Work) -> JobResult:
    listed = work.calls.listed_consumers(active_since=_last_success(work))
    consumers, work.run.left_out = chosen(listed, work.max_consumers)
    work.run.doing = "asking for every consumer's lag"
    measures, answers = _ask(work, consumers) if consumers else ([], [])
    unknown, problems = split_unknown(answers)
    work.post(result_parts(consumers=measures))
    work.run.rows = len(measures)
    if problems:
        work.run.fails = f"{len(problems)} of {len(consumers)} consumers could not be asked; {problems[0]}"
    note = f", the lag of {len(unknown):,} unknown ({NO_LEADER})" if unknown else ""
    more = f", {work.run.left_out:,} more left out" if work.run.left_out else ""
    return JobResult(f"{len(consumers):,} consumers{note}{more}")


def split_unknown(answers: list[str]) -> tuple[list[str], list[str]]:
    """Consumers whose lag cannot be known in this run, and problems that fail the run."""
    unknown = [each for each in answers if each.endswith(NO_LEADER)]
    return unknown, [each for each in answers if each not in unknown]


def chosen(listed: Sequence[Mapping[str, Any]], limit: int) -> tuple[list[int], int]:
    """The consumers to measure, and how many lie beyond the limit: named ones first, then the newest."""
    first = sorted(listed, key=lambda entry: (entry["name"] is None, -entry["consumer_id"]))
    return sorted(entry["consumer_id"] for entry in first[:limit]), max(0, len(first) - limit)


def _last_success(work: Work) -> int | None:
    """When the last run that succeeded began, in ms; None: nothing is known of one, so every consumer counts."""
    runs = work.calls.runs(work.run.job, _RUNS_BACK)
    began = [each["started_at"] for each in runs if each["outcome"] == "succeeded"]
    return max(began) - _STAMP_LATE_MS if began else None


def _ask(work: Work, consumers: list[int]) -> tuple[list[ConsumerLagMeasure], list[str]]:
    session = work.session
    ids = session.createDataFrame([(each,) for each in consumers], "consumer_id BIGINT")
    tasks = min(session.sparkContext.defaultParallelism, -(-len(consumers) // _CONSUMERS_PER_TASK))
    rows = work.collect(ids.repartition(tasks).mapInArrow(_asker(work.url), _COLUMNS))
    measures, problems = [], []
    for row in sorted(rows, key=lambda row: (row.consumer_id, row.partition_id or 0)):
        fields = row.asDict()
        problem = fields.pop("problem")
        if problem is None:
            measures.append(ConsumerLagMeasure(**fields))
        else:
            problems.append(f"consumer {row.consumer_id}: {problem}")
    return measures, problems


def _asker(url: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function inside a function travels whole: executors elsewhere have the library, but not this package."""
    schema = pa.schema(
        [
            ("consumer_id", pa.int64()),
            ("topic", pa.string()),
            ("partition_id", pa.int32()),
            ("cursor", pa.int64()),
            ("end_offset", pa.int64()),
            ("messages", pa.int64()),
            ("stored_bytes", pa.int64()),
            ("seconds", pa.float64()),
            ("problem", pa.string()),
        ]
    )

    no_leader = NO_LEADER  # travels with the function

    def is_leaderless(transport: Transport, consumer_id: int) -> bool:
        """Asked when the lag was not answered: a read manager waits for a leader for longer than this job."""
        try:
            topic = transport.call(routes.DESCRIBE_CONSUMER, path={"consumer_id": consumer_id}).body["topic"]
            listed = transport.call(routes.LIST_PARTITIONS, path={"topic": topic}).body["partitions"]
        except MyQueueError:
            return False  # the first error says more
        return any(entry["leader"] is None for entry in listed)

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        transport = Transport(url, retry=RetryPolicy(deadline_s=5.0))
        try:
            for batch in batches:
                rows = []
                for consumer_id in batch.column(0).to_pylist():
                    try:
                        lag = transport.call(routes.LAG, path={"consumer_id": consumer_id}).body
                    except ConsumerNotFound:
                        continue  # gone since it was listed
                    except MyQueueError as error:
                        unknown = isinstance(error, Unavailable) and is_leaderless(transport, consumer_id)
                        rows.append({"consumer_id": consumer_id, "problem": no_leader if unknown else error.message})
                        continue
                    shared = {"consumer_id": consumer_id, "topic": lag["topic"]}
                    rows += [shared | partition for partition in lag["partitions"]]
                yield pa.RecordBatch.from_pylist(rows, schema=schema)
        finally:
            transport.close()

    return ask
