"""Sparklines of `myqueue stats`: heights, gaps and places in time."""

from myqueue.cli.stats import POINTS, in_steps, sparkline


def test_heights_and_gaps() -> None:
    assert sparkline([0, 5, 10]) == "▁▅█"
    assert sparkline([None, 7, None]) == " █ "
    assert sparkline([0, 0.0]) == "▁▁", "a rate of zero is not a gap"
    assert sparkline([]) == ""


def test_points_lie_where_they_were_measured() -> None:
    hour = 3_600_000
    end = 100 * hour
    history = [{"computed_at": end - age * hour, "rate": float(age)} for age in (0, 1, 5, 23, 24)]
    values = in_steps(history, "rate", end, POINTS * hour)
    assert [place for place, value in enumerate(values) if value is not None] == [0, POINTS - 6, POINTS - 2, POINTS - 1]
    assert values[-1] == 0.0
