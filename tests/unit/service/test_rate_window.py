import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.rate_window import RateWindow


def test_a_rate_needs_two_samples() -> None:
    window: RateWindow[str] = RateWindow(5)
    assert window.rate("a") is None
    window.add(10, {"a": 100})
    assert window.rate("a") is None
    window.add(12, {"a": 130, "b": 5})
    assert window.rate("a") == 15
    assert window.rate("b") is None
    assert window.rate("c") is None


def test_only_the_last_seconds_count() -> None:
    window: RateWindow[str] = RateWindow(5)
    for now_s, count in ((0, 0), (1, 1000), (5, 1000), (6, 1000)):
        window.add(now_s, {"a": count})
    assert window.rate("a") == 0


def test_samples_of_an_hour_ago_give_no_rate() -> None:
    window: RateWindow[str] = RateWindow(5)
    window.add(0, {"a": 0})
    window.add(3600, {"a": 1_000_000})
    assert window.rate("a") is None


def test_a_counter_that_started_again_has_no_rate() -> None:
    window: RateWindow[str] = RateWindow(5)
    window.add(0, {"a": 100})
    window.add(1, {"a": 3})
    assert window.rate("a") is None
    assert window.change("a") == -97
    window.add(2, {})
    window.add(6.5, {"a": 9})
    assert window.rate("a") is None


@given(st.lists(st.tuples(st.floats(0.1, 3), st.integers(0, 1000)), min_size=2, max_size=20))
def test_the_rate_of_a_counter_is_never_outside_what_its_steps_were(steps: list[tuple[float, int]]) -> None:
    window: RateWindow[str] = RateWindow(5)
    now_s, count, rates = 0.0, 0, []
    window.add(now_s, {"a": count})
    for passed_s, more in steps:
        now_s, count = now_s + passed_s, count + more
        window.add(now_s, {"a": count})
        rates.append(more / passed_s)
    rate = window.rate("a")
    assert rate is not None
    assert min(rates) <= rate + 1e-6
    assert rate <= max(rates) + 1e-6


def test_two_samples_at_one_time_give_no_rate() -> None:
    window: RateWindow[str] = RateWindow(5)
    window.add(1, {"a": 1})
    window.add(1, {"a": 2})
    assert window.rate("a") is None
    window.add(2, {"a": 3})
    assert window.rate("a") == pytest.approx(2)
