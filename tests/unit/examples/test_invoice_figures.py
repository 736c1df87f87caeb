"""The figures of the invoice pipeline while it runs."""

import pytest

from examples.invoices.figures import Figures, Sample, sparkline


def test_a_sparkline_is_as_high_as_its_highest_value() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([0.0, 50.0, 100.0, -3.0]) == "▁▅█▁"


def test_reports_add_up() -> None:
    figures = Figures(["gen1", "gen2"], ["filter1", "filter2"])
    figures.report("gen1", {"sent": 30})
    figures.report("gen2", {"sent": 12})
    figures.report("filter1", {"filtered": 10, "partitions": [0, 2]})
    figures.report("filter2", {"filtered": 5, "partitions": [1]})
    figures.report("filter2", {"filtered": 6})
    assert (figures.generated, figures.filtered, figures.waiting) == (42, 16, 26)
    assert figures.filters["filter2"].partitions == [1]
    figures.end()
    figures.report("filter1", {"filtered": 11, "partitions": [0, 1, 2]})
    assert figures.filters["filter1"].partitions == [0, 2], "others leave at the end: their partitions do not count"


def test_rates_are_those_of_the_last_second_and_at_the_end_of_the_whole() -> None:
    figures = Figures(["gen1"], ["filter1"])
    figures.samples.clear()
    for quarter in range(41):  # two seconds of nothing, four of 100 a second, four of 200
        at_s = quarter / 4
        generated = max(0.0, 100 * (min(at_s, 6) - 2)) + max(0.0, 200 * (at_s - 6))
        figures.samples.append(Sample(at_s, int(generated), int(generated) // 2))
    assert figures.rate("generated", 10_000) == pytest.approx(200)
    assert figures.rate("generated", 1200) == pytest.approx(150)
    assert figures.history("generated", 1.0) == pytest.approx([100] * 4 + [200] * 5, abs=40)
    assert max(figures.history("waiting", 1.0)) == 600
