"""Which figures of the statistics API a plot shows: its listing, field, unit and title. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from service.svg_plot import Plot, Series, Unit


@dataclass(frozen=True, slots=True)
class PlottedFigure:
    of: Literal["topics", "consumers"]  # whose totals
    field: str
    title: str
    unit: Unit


FIGURES: dict[str, PlottedFigure] = {
    "messages": PlottedFigure("topics", "messages", "Messages stored", "count"),
    "payload_bytes": PlottedFigure("topics", "payload_bytes", "Payload bytes stored (keys and values)", "bytes"),
    "stored_bytes": PlottedFigure("topics", "stored_bytes", "Stored bytes (on the leaders' disks)", "bytes"),
    "rate_in": PlottedFigure("topics", "rate_in_per_minute", "Messages in per minute", "rate"),
    "rate_out": PlottedFigure("consumers", "rate_out_per_minute", "Messages out per minute", "rate"),
    "skew": PlottedFigure("topics", "skew", "Skew: largest partition by the mean", "ratio"),
    "lag_messages": PlottedFigure("consumers", "messages", "Lag: messages", "count"),
    "lag_bytes": PlottedFigure("consumers", "stored_bytes", "Lag: stored bytes", "bytes"),
    "lag_seconds": PlottedFigure("consumers", "seconds", "Lag: age of the oldest unread message", "seconds"),
    "catch_up_seconds": PlottedFigure("consumers", "catch_up_seconds", "Time to catch up (a gap: never)", "seconds"),
}


def plot_of(metric: str, totals: Sequence[Mapping[str, Any]], start_ms: int, end_ms: int, topic: str | None) -> Plot:
    """`totals` as of /v1/stats/topics/totals or /v1/stats/consumers/totals, with the history of the time."""
    figure = FIGURES[metric]
    series = [
        Series(
            _name(figure, each), [(point["computed_at"], point[figure.field]) for point in reversed(each["history"])]
        )
        for each in totals
    ]
    title = figure.title if topic is None else f"{figure.title} · {topic}"
    return Plot(title, figure.unit, [each for each in series if each.points], start_ms, end_ms)


def _name(figure: PlottedFigure, entry: Mapping[str, Any]) -> str:
    if figure.of == "topics":
        return str(entry["topic"])
    return f"{entry['name'] or '#' + str(entry['consumer_id'])} of {entry['topic']}"
