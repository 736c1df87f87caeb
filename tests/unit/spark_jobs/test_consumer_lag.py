"""Which consumers a run measures, what fails it, and that a consumer's partitions are posted together."""

from myqueue.protocol import limits
from myqueue.protocol.models import ConsumerLagMeasure
from spark.jobs.consumer_lag import NO_LEADER, chosen, split_unknown
from spark.jobs.work import result_parts


def test_named_consumers_come_first_then_the_newest() -> None:
    listed = [{"consumer_id": n, "name": "named" if n in (2, 9) else None} for n in range(12)]
    assert chosen(listed, 4) == ([2, 9, 10, 11], 8)
    assert chosen(listed, 12) == (list(range(12)), 0)
    assert chosen([], 4) == ([], 0)


def test_a_partition_without_a_leader_is_unknown_and_no_problem() -> None:
    unknown, problem = f"consumer 1: {NO_LEADER}", "consumer 2: the request took too long"
    assert split_unknown([unknown, problem]) == ([unknown], [problem])


def test_partitions_of_a_consumer_are_in_one_post() -> None:
    """Its totals are computed from one post: cut in two, there would be none."""
    count = limits.MAX_MEASURED_LAGS // 3 + 5
    lags = [
        ConsumerLagMeasure(
            consumer_id=consumer_id,
            topic="t",
            partition_id=partition_id,
            cursor=0,
            end_offset=0,
            messages=0,
            stored_bytes=0,
            seconds=0,
        )
        for consumer_id in range(count)
        for partition_id in range(3)
    ]
    parts = list(result_parts(consumers=lags))
    assert [lag for part in parts for lag in part.consumers] == lags
    assert len(parts) == 2
    owners = [{lag.consumer_id for lag in part.consumers} for part in parts]
    assert not owners[0] & owners[1]
