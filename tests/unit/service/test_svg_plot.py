"""Plots: well-formed whatever the names, bounded whatever the data, true to it."""

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.svg_plot import (
    MAX_POINTS,
    MAX_SERIES,
    Plot,
    Series,
    Unit,
    svg,
    thinned,
    time_ticks,
    value_text,
    value_ticks,
)

HOUR = 3_600_000
NAMESPACE = "{http://www.w3.org/2000/svg}"
values = st.none() | st.floats(0, 1e18) | st.just(math.inf)
series = st.builds(Series, st.text(max_size=60), st.lists(st.tuples(st.integers(0, HOUR), values), max_size=30))


def paths(text: str) -> list[str]:
    """Of the lines of the plot."""
    lines = ElementTree.fromstring(text).iter(f"{NAMESPACE}path")
    return [line.attrib["d"] for line in lines if line.attrib.get("fill") == "none"]


@given(st.text(max_size=30), st.lists(series, max_size=12), st.sampled_from(["count", "bytes", "seconds"]))
def test_any_series_make_well_formed_xml(title: str, many: list[Series], unit: Unit) -> None:
    text = svg(Plot(title, unit, many, 0, HOUR))
    root = ElementTree.fromstring(text)
    assert root.tag == f"{NAMESPACE}svg"
    assert "<script" not in text


def test_names_are_escaped() -> None:
    hostile = "</svg><script>alert(1)</script>&\x00\x1b"
    text = svg(Plot(hostile, "count", [Series(hostile, [(0, 1.0), (HOUR, 2.0)])], 0, HOUR))
    assert "<script" not in text
    assert ElementTree.fromstring(text).find(f"{NAMESPACE}script") is None


def test_what_is_not_known_is_a_gap_and_zero_is_drawn() -> None:
    points = [(0, 5.0), (10, 5.0), (20, None), (30, 0.0), (HOUR, 0.0)]
    first, second = paths(svg(Plot("t", "count", [Series("a", points)], 0, HOUR)))
    assert first.count("L") == second.count("L") == 1
    heights = [part.split()[1] for part in second[1:].split("L")]
    assert heights[0] == heights[1], "a rate of zero is a line at the bottom, not a missing one"
    assert "nothing was recorded" in svg(Plot("t", "count", [], 0, HOUR))


def test_size_is_bounded() -> None:
    many = [Series(f"s{n}", [(ms, float(n)) for ms in range(0, 100_000, 10)]) for n in range(40)]
    text = svg(Plot("t", "count", many, 0, 100_000))
    assert len(paths(text)) == MAX_SERIES
    assert f"and {40 - MAX_SERIES} more" in text
    assert len(text) < MAX_SERIES * MAX_POINTS * 16
    peak: list[tuple[int, float | None]] = [(n, 9.0 if n == 4_321 else 1.0) for n in range(10_000)]
    assert (4_321, 9.0) in thinned(peak), "no peak is lost"


@given(st.floats(1e-6, 1e18), st.sampled_from(["count", "bytes", "seconds", "rate", "ratio"]))
def test_ticks_reach_the_highest_value(highest: float, unit: Unit) -> None:
    ticks = value_ticks(highest, unit)
    assert ticks[0] == 0
    assert ticks[-1] >= highest * (1 - 1e-6)
    assert 2 <= len(ticks) <= 6


@given(st.integers(0, 10**13), st.integers(1, 10**12))
def test_time_ticks_lie_inside(start: int, span: int) -> None:
    ticks = time_ticks(start, start + span)
    assert len(ticks) <= 9
    assert all(start <= tick <= start + span for tick in ticks)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0, "count", "0"),
        (1500, "count", "1.5k"),
        (2048, "bytes", "2 KiB"),
        (90, "seconds", "1.5 m"),
        (5, "bytes", "5 B"),
    ],
)
def test_labels(value: float, unit: Unit, expected: str) -> None:
    assert value_text(value, unit) == expected


def test_a_value_next_to_nothing_is_drawn_as_zero() -> None:
    assert value_ticks(5e-324, "count") == value_ticks(0.0, "count")
