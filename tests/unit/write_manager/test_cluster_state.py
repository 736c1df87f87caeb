import uuid
from collections import Counter

import pytest

from myqueue.protocol.internal import Configuration
from write_manager.cluster_state import SETTLING_S, appended, summarize_partitions, topic_state
from write_manager.metadata_cache import CachedPartition, CachedTopic

REPORTED: Configuration = {"index": 1, "voters": [], "learners": []}
NOW_S = 1000.0
ACTIVE = {1, 2, 3}


def partition(partition_id: int = 0, leader: int | None = 1, **more: object) -> CachedPartition:
    made = CachedPartition(partition_id, leader, 1, (1, 2, 3), (), configuration=REPORTED, voters=[1, 2, 3])
    for name, value in more.items():
        setattr(made, name, value)
    return made


def topic(*partitions: CachedPartition, age_s: float = 100) -> CachedTopic:
    return CachedTopic("orders", uuid.uuid4(), 3, None, None, list(partitions), cached_s=NOW_S - age_s)


def test_a_well_cluster() -> None:
    found = summarize_partitions([topic(partition(0, 1), partition(1, 2, size_bytes=10))], ACTIVE, NOW_S)
    assert (found.leaderless, found.under_replicated, found.damaged_replicas) == ([], [], 0)
    assert found.leaders == Counter({1: 1, 2: 1})
    assert found.replicas == Counter({1: 2, 2: 2, 3: 2})
    assert found.stored_bytes == Counter({1: 10, 2: 10, 3: 10})


@pytest.mark.parametrize(
    ("changed", "active", "leaderless", "missing"),
    [
        ({"leader": None}, ACTIVE, True, None),
        ({"leader": 3}, {1, 2}, True, [3]),
        ({}, {1, 2}, False, [3]),
        ({"voters": [1, 2]}, ACTIVE, False, [3]),
        ({"voters": None}, ACTIVE, False, [1, 2, 3]),
        ({"damaged": {2: "torn"}}, ACTIVE, False, [2]),
    ],
)
def test_what_is_missing(
    changed: dict[str, object], active: set[int], leaderless: bool, missing: list[int] | None
) -> None:
    found = summarize_partitions([topic(partition(0, **{"leader": 1, **changed}))], active, NOW_S)  # type: ignore[arg-type]
    assert bool(found.leaderless) is leaderless
    assert [each["missing"] for each in found.under_replicated] == ([] if missing is None else [missing])


def test_nothing_is_missing_of_a_topic_whose_replicas_have_to_report_first() -> None:
    new = {"configuration": None, "leader": None, "voters": None}
    young = summarize_partitions([topic(partition(**new), age_s=SETTLING_S / 2)], ACTIVE, NOW_S)  # type: ignore[arg-type]
    assert (young.leaderless, young.under_replicated) == ([], [])
    late = summarize_partitions([topic(partition(**new), age_s=SETTLING_S)], ACTIVE, NOW_S)  # type: ignore[arg-type]
    assert (len(late.leaderless), len(late.under_replicated)) == (1, 1)


def test_figures_of_a_topic_are_unknown_until_all_leaders_have_reported() -> None:
    known = topic(partition(0, beginning_offset=5, end_offset=25, size_bytes=7), partition(1, end_offset=1))
    assert appended(known) == 26
    assert topic_state(known, 1.5) == {
        "topic": "orders",
        "partitions": 2,
        "messages": 21,
        "stored_bytes": 7,
        "messages_in_per_s": 1.5,
    }
    unknown = topic(partition(0), partition(1, configuration=None))
    assert appended(unknown) is None
    assert topic_state(unknown, None)["messages"] is None
    assert topic_state(unknown, None)["stored_bytes"] is None
