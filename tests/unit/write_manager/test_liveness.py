"""Liveness: who died and who came back, by the clock of the one who listens."""

from hypothesis import given
from hypothesis import strategies as st

from write_manager.liveness import judge

members = st.dictionaries(st.integers(1, 9), st.floats(0, 100), max_size=9)


@given(members, st.sets(st.integers(1, 9)), st.floats(100, 200), st.floats(0.1, 50))
def test_changes_and_only_changes(heard: dict[int, float], active: set[int], now_s: float, ttl_s: float) -> None:
    verdict = judge(heard, dict.fromkeys(active, True), now_s, ttl_s)
    assert not set(verdict.died) & set(verdict.revived)
    for member, last_s in heard.items():
        alive = now_s - last_s <= ttl_s
        assert (member in verdict.died) == (member in active and not alive)
        assert (member in verdict.revived) == (member not in active and alive)


def test_a_broker_is_inactive_after_five_seconds() -> None:
    heard, active = {1: 10.0, 2: 14.9}, {1: True, 2: True}
    assert judge(heard, active, 15.0, 5).died == ()
    assert judge(heard, active, 15.1, 5).died == (1,)
