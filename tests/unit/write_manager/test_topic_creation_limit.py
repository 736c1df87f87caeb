"""Topics that one address may create: never more than the bucket and what was refilled, and memory has an end."""

import math
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from write_manager.registrations import TopicCreationLimit

STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 90, allow_nan=False)), max_size=300)


def test_a_burst_then_one_for_each_refill() -> None:
    limit = TopicCreationLimit(60)
    assert [limit.wait_s("a", 100.0) for _ in range(60)] == [0.0] * 60
    assert math.isclose(limit.wait_s("a", 100.0), 1.0)
    assert limit.wait_s("b", 100.0) == 0.0, "another address has its own"
    assert math.isclose(limit.wait_s("a", 100.75), 0.25)
    assert limit.wait_s("a", 101.0) == 0.0
    assert limit.wait_s("a", 101.0) > 0
    assert limit.wait_s("a", 50.0) > 0, "a clock that goes back gives nothing"
    assert [limit.wait_s("a", 161.0) for _ in range(61)].count(0.0) == 60


@given(STEPS, st.integers(1, 5))
def test_no_minute_has_more_than_two_buckets(steps: list[tuple[str, float]], per_minute: int) -> None:
    """A full bucket and what flows in meanwhile; and whoever waits as long as told gets through."""
    limit = TopicCreationLimit(per_minute)
    created: dict[str, list[float]] = defaultdict(list)
    now_s = 0.0
    for address, gap_s in steps:
        now_s += gap_s
        wait_s = limit.wait_s(address, now_s)
        if wait_s:
            assert 0 < wait_s <= 60 / per_minute + 1e-6
            now_s += wait_s + 1e-6
            assert limit.wait_s(address, now_s) == 0.0
        created[address].append(now_s)
    for times in created.values():
        for start_s in times:
            assert sum(start_s <= at_s < start_s + 60 for at_s in times) <= 2 * per_minute


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 5, allow_nan=False)), max_size=200))
def test_memory_is_bounded(steps: list[tuple[int, float]]) -> None:
    limit, now_s = TopicCreationLimit(2, max_addresses=10), 0.0
    for address, gap_s in steps:
        now_s += gap_s
        limit.wait_s(f"10.0.0.{address}", now_s)
        assert 1 <= len(limit) <= 10
    limit.wait_s("10.0.1.0", now_s + 61)
    assert len(limit) == 1
