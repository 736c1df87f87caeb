"""Arithmetic on measured values."""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed."""
    if not values:
        raise ValueError("no values")
    if not 0 < share <= 1:
        raise ValueError(f"share must be over 0 and at most 1, not {share}")
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]


def rate_between(samples: Sequence[tuple[float, int]], begin: float, end: float) -> float:
    """Messages a second between two times, from (time, messages so far) samples in order of time.

    Only samples inside the window count: nothing is extrapolated."""
    inside = [sample for sample in samples if begin <= sample[0] <= end]
    if len(inside) < 2 or inside[-1][0] <= inside[0][0]:
        raise ValueError(f"fewer than two samples between {begin:.1f} and {end:.1f} s")
    (first_s, first), (last_s, last) = inside[0], inside[-1]
    return (last - first) / (last_s - first_s)


def short(value: float) -> str:
    """Three significant digits: 1.25 M, 632 k, 4.21."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit * 0.9995:
            return f"{_three_digits(value / limit)}{unit}"
    return _three_digits(value)


def _three_digits(value: float) -> str:
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
