"""Placement: distinct brokers, even spread, the same answer for the same input."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from write_manager.replica_placement import place_replicas

loads = st.dictionaries(st.integers(1, 20), st.integers(0, 50), min_size=1, max_size=9)


@given(loads, st.integers(1, 64), st.data())
def test_replicas_are_distinct_live_brokers(leaders: dict[int, int], partitions: int, data: st.DataObject) -> None:
    replication = data.draw(st.integers(1, len(leaders)))
    placed = place_replicas(partitions, replication, leaders, leaders)
    assert len(placed) == partitions
    for brokers in placed:
        assert len(brokers) == len(set(brokers)) == replication
        assert set(brokers) <= set(leaders)
    assert placed == place_replicas(partitions, replication, leaders, leaders)


@given(st.integers(1, 9), st.integers(1, 64), st.data())
def test_equal_brokers_get_equal_shares(brokers: int, partitions: int, data: st.DataObject) -> None:
    replication = data.draw(st.integers(1, brokers))
    empty = dict.fromkeys(range(1, brokers + 1), 0)
    placed = place_replicas(partitions, replication, empty, empty)
    leading = Counter(chosen[0] for chosen in placed)
    holding = Counter(broker for chosen in placed for broker in chosen)
    for counts in (leading, holding):
        shares = [counts[broker] for broker in empty]
        assert max(shares) - min(shares) <= 1


@given(loads, st.integers(1, 64))
def test_no_broker_gets_work_while_another_has_less(leaders: dict[int, int], partitions: int) -> None:
    after = Counter(leaders)
    for (leader,) in place_replicas(partitions, 1, leaders, leaders):
        assert after[leader] == min(after[broker] for broker in leaders)
        after[leader] += 1


@pytest.mark.parametrize("replication", [0, 3])
def test_more_replicas_than_brokers_is_refused(replication: int) -> None:
    with pytest.raises(ValueError, match="needs as many live brokers"):
        place_replicas(1, replication, {1: 0, 2: 0}, {})
