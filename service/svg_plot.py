"""Figures over time as one SVG picture. Pure: series in, text out; everything that comes from outside is escaped."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from xml.sax.saxutils import escape

Unit = Literal["count", "bytes", "seconds", "rate", "ratio"]

MAX_SERIES = 8  # more lines than that cannot be told apart
MAX_POINTS = 2_000  # of a line: more than a screen has columns
_COLORS = ("#1f6feb", "#d1570c", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#0a7ea4", "#57606a")
_LEFT, _RIGHT, _TOP, _LINE = 64, 12, 30, 16
_MAX_NAME_CHARS = 40
_SMALLEST = 1e-9  # what is smaller is drawn as zero
_TIME_STEPS_MS = (
    *(60_000 * n for n in (1, 2, 5, 10, 15, 30)),
    *(3_600_000 * n for n in (1, 2, 3, 6, 12)),
    *(86_400_000 * n for n in (1, 2, 7, 14, 30, 90, 365)),
)


@dataclass(frozen=True, slots=True)
class Series:
    """Points of time (ms) and value, oldest first. A value of None is a gap in the line."""

    name: str
    points: Sequence[tuple[int, float | None]]


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    unit: Unit
    series: Sequence[Series]
    start_ms: int
    end_ms: int


def svg(plot: Plot, *, width: int = 720, height: int = 260) -> str:
    """The largest series only, by their highest value; the legend tells how many are not drawn."""
    shown = sorted(plot.series, key=_highest, reverse=True)[:MAX_SERIES]
    legend = [_shortened(series.name) for series in shown]
    if len(plot.series) > len(shown):
        legend.append(f"and {len(plot.series) - len(shown)} more")
    rows = _legend_rows(legend, width - _LEFT - _RIGHT)
    bottom = height - 22 - _LINE * len(rows)
    scale = _Scale(plot, shown, width, bottom)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="system-ui,sans-serif" font-size="11" role="img">',
        f"<title>{_text(plot.title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="18" font-size="13" font-weight="600" fill="#1f2328">{_text(plot.title)}</text>',
        *_value_axis(plot, scale, width),
        *_time_axis(plot, scale, bottom),
    ]
    for series, color in zip(shown, _COLORS, strict=False):
        parts += _line(series, color, scale)
    if not any(value is not None for series in shown for _, value in series.points):
        middle = f'x="{(_LEFT + width - _RIGHT) / 2:.0f}" y="{(_TOP + bottom) / 2:.0f}" text-anchor="middle"'
        parts.append(f'<text {middle} fill="#57606a">nothing was recorded in this time</text>')
    parts += _legend(rows, bottom)
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Scale:
    def __init__(self, plot: Plot, shown: Sequence[Series], width: int, bottom: int) -> None:
        self.ticks = value_ticks(max((_highest(series) for series in shown), default=0.0), plot.unit)
        self._top = self.ticks[-1]
        self._start, self._span = plot.start_ms, max(1, plot.end_ms - plot.start_ms)
        self._width, self._bottom = width - _LEFT - _RIGHT, bottom

    def x(self, ms: int) -> float:
        return _LEFT + self._width * min(1.0, max(0.0, (ms - self._start) / self._span))

    def y(self, value: float) -> float:
        return self._bottom - (self._bottom - _TOP) * min(1.0, max(0.0, value / self._top))


def value_ticks(highest: float, unit: Unit) -> list[float]:
    """From 0 to at or above the highest value, in about four steps of 1, 2 or 5 of the unit that labels have."""
    if not math.isfinite(highest) or highest < _SMALLEST:
        return [0.0, 1.0]
    base = 1.0
    if unit == "bytes":
        while highest / base >= 1024:
            base *= 1024
    if unit == "seconds":
        base = next((size for size in (86400.0, 3600.0, 60.0) if highest >= size), 1.0)
    rough = highest / base / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(n for n in (1, 2, 5, 10) if n * power >= rough) * power * base
    count = math.ceil(highest / step - 1e-9)
    return [step * n for n in range(count + 1)]


def value_text(value: float, unit: Unit) -> str:
    if unit == "bytes":
        for name in ("B", "KiB", "MiB", "GiB", "TiB"):
            if value < 1024 or name == "TiB":
                return f"{value:.4g} {name}"
            value /= 1024
    if unit == "seconds":
        for size, name in ((86400, "d"), (3600, "h"), (60, "m")):
            if value >= size:
                return f"{value / size:.3g} {name}"
        return f"{value:.3g} s"
    for power, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power:
            return f"{value / power:.4g}{name}"
    return f"{value:.4g}"


def time_ticks(start_ms: int, end_ms: int) -> list[int]:
    """Round moments, at most eight of them."""
    span = max(1, end_ms - start_ms)
    step = next((step for step in _TIME_STEPS_MS if span / step <= 8), span)
    return list(range(-(-start_ms // step) * step, end_ms + 1, step))[:9]


def _value_axis(plot: Plot, scale: _Scale, width: int) -> list[str]:
    lines = []
    for tick in scale.ticks:
        y = scale.y(tick)
        lines.append(f'<path d="M{_LEFT} {y:.1f}H{width - _RIGHT}" stroke="#d8dee4" stroke-width="1"/>')
        label = _text(value_text(tick, plot.unit))
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#57606a">{label}</text>')
    return lines


def _time_axis(plot: Plot, scale: _Scale, bottom: int) -> list[str]:
    days = plot.end_ms - plot.start_ms > 2 * 86_400_000
    lines = []
    for tick in time_ticks(plot.start_ms, plot.end_ms):
        x = scale.x(tick)
        when = datetime.fromtimestamp(tick / 1000, UTC)
        label = when.strftime("%d %b" if days else "%H:%M")
        lines.append(f'<path d="M{x:.1f} {bottom}v4" stroke="#57606a"/>')
        lines.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#57606a">{label}</text>')
    return lines


def _line(series: Series, color: str, scale: _Scale) -> list[str]:
    """Pieces between gaps; a point without neighbours is a dot."""
    points = thinned(series.points)
    pieces: list[list[str]] = [[]]
    for ms, value in points:
        if value is None or not math.isfinite(value):
            pieces.append([])
        else:
            pieces[-1].append(f"{scale.x(ms):.1f} {scale.y(value):.1f}")
    lines = []
    for piece in pieces:
        if len(piece) == 1:
            x, y = piece[0].split()
            lines.append(f'<circle cx="{x}" cy="{y}" r="2" fill="{color}"/>')
        elif piece:
            path = "M" + "L".join(piece)
            lines.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.5" stroke-linejoin="round"/>')
    return lines


def thinned(points: Sequence[tuple[int, float | None]]) -> Sequence[tuple[int, float | None]]:
    """At most MAX_POINTS; of neighbours the highest is kept, so that no peak is lost."""
    if len(points) <= MAX_POINTS:
        return points
    size = -(-len(points) // MAX_POINTS)
    groups = (points[start : start + size] for start in range(0, len(points), size))
    return [max(group, key=lambda point: -1.0 if point[1] is None else point[1]) for group in groups]


def _legend_rows(names: Sequence[str], width: int) -> list[list[str]]:
    rows: list[list[str]] = [[]]
    used = 0
    for name in names:
        room = 24 + 7 * len(name)
        if rows[-1] and used + room > width:
            rows.append([])
            used = 0
        rows[-1].append(name)
        used += room
    return rows if names else []


def _legend(rows: Sequence[Sequence[str]], bottom: int) -> list[str]:
    lines = []
    number = 0
    for row, names in enumerate(rows):
        x, y = _LEFT, bottom + 32 + _LINE * row
        for name in names:
            if number < MAX_SERIES:
                lines.append(f'<rect x="{x}" y="{y - 8}" width="10" height="3" fill="{_COLORS[number]}"/>')
            lines.append(f'<text x="{x + 14}" y="{y - 3}" fill="#1f2328">{_text(name)}</text>')
            x += 24 + 7 * len(name)
            number += 1
    return lines


def _highest(series: Series) -> float:
    return max((value for _, value in series.points if value is not None and math.isfinite(value)), default=0.0)


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARS else name[: _MAX_NAME_CHARS - 1] + "…"


def _text(text: str) -> str:
    """Escaped, and without the control characters that XML does not allow."""
    return escape("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text))
