"""A service that dies is started again after a second, and ever later only while it dies young."""

from hypothesis import given
from hypothesis import strategies as st

from stack.supervisor import FIRST_BACKOFF_S, MAX_BACKOFF_S, STABLE_S, Backoff


def test_first_restart_after_one_second() -> None:
    assert Backoff().after_exit(ready_for_s=0.0).delay_s == 1.0
    assert Backoff().after_exit(ready_for_s=3600.0).delay_s == 1.0


def test_early_exits_double_the_delay_up_to_a_cap() -> None:
    backoff, delays = Backoff(), []
    for _ in range(7):
        backoff = backoff.after_exit(ready_for_s=0.1)
        delays.append(backoff.delay_s)
    assert delays == [1, 2, 4, 8, 15, 15, 15]


@given(st.lists(st.floats(min_value=0, max_value=1e6)))
def test_delay_stays_in_bounds_and_a_stable_time_resets_it(lives: list[float]) -> None:
    backoff = Backoff()
    for ready_for_s in lives:
        backoff = backoff.after_exit(ready_for_s)
        assert FIRST_BACKOFF_S <= backoff.delay_s <= MAX_BACKOFF_S
        if ready_for_s >= STABLE_S:
            assert backoff.delay_s == FIRST_BACKOFF_S
