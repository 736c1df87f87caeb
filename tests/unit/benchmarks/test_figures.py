"""Arithmetic of the benchmarks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures import percentile, rate_between, short

numbers = st.floats(min_value=0, max_value=1e9)


@given(st.lists(numbers, min_size=1), st.floats(min_value=0.001, max_value=1))
def test_a_percentile_is_a_value_that_enough_others_do_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    below = [value for value in values if value < found]
    assert len(below) < share * len(values)


def test_a_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_rate_counts_only_what_was_seen_inside_the_window() -> None:
    samples = [(0.0, 0), (1.0, 100), (2.0, 200), (3.0, 900), (9.0, 1000)]
    assert rate_between(samples, 0.0, 2.5) == 100
    assert rate_between(samples, 1.5, 3.0) == 700


def test_a_window_without_samples_has_no_rate() -> None:
    with pytest.raises(ValueError, match="fewer than two samples"):
        rate_between([(0.0, 0), (5.0, 10)], 1.0, 6.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.9, "0.90"),
        (4.213, "4.21"),
        (42.13, "42.1"),
        (999.2, "999"),
        (999.9, "1.00 k"),
        (632_100, "632 k"),
        (1.25e6, "1.25 M"),
    ],
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text
