"""The figures as a picture: an SVG of bars, grouped by what is compared, that reads well on light and dark pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape

from benchmarks.figures import short
from benchmarks.measurement import Result
from benchmarks.report import Report

WIDTH = 860
MARGIN = 24
LABEL_WIDTH = 345
VALUE_WIDTH = 90
BAR, GAP, HEADING, PANEL_GAP = 18, 8, 30, 18
OURS = "myqueue"
PANELS = (
    ("produce", "Produce"),
    ("consume", "Consume"),
    ("single HTTP produce", "Produce one message by HTTP request, 16 connections"),
    ("single HTTP consume", "Consume one message by HTTP request, 16 connections"),
)
SIZE = 100

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
  .title { font-size: 17px; font-weight: 600; }
  .heading { font-weight: 600; }
  .note, .value { fill: #59636e; }
  .ours { fill: #0969da; } .peer { fill: #afb8c1; } .axis { stroke: #d1d9e0; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .note, .value { fill: #9198a1; }
    .ours { fill: #4493f8; } .peer { fill: #656c76; } .axis { stroke: #3d444d; }
  }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    kind: Literal["ours", "peer"]


def svg(report: Report) -> str:
    panels = [(heading, _bars(report, group)) for group, heading in PANELS]
    panels = [(heading, bars) for heading, bars in panels if bars]
    parts: list[str] = []
    y = MARGIN + 16
    parts.append(_text(MARGIN, y, f"Messages a second, {SIZE} bytes each, Python clients, one machine", "title"))
    y += 22
    parts.append(_text(MARGIN, y, _subtitle(report), "note"))
    y += PANEL_GAP
    for heading, bars in panels:
        drawn, y = _panel(heading, bars, y)
        parts.extend(drawn)
    y += GAP
    for line in _durabilities(report):
        y += 18
        parts.append(_text(MARGIN, y, line, "note"))
    height = y + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="Messages a second of myqueue and other systems">\n'
        f"<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _subtitle(report: Report) -> str:
    machine = report.machine
    quick = " (quick run)" if report.quick else ""
    return f"{machine['cores']} cores for clients and servers together, {report.seconds:g} s each{quick}"


def _bars(report: Report, group: str) -> list[Bar]:
    def is_shown(result: Result) -> bool:
        return result.group == group and result.size == SIZE and result.figure is not None

    found = [
        Bar(f"{report.title_of(result.system)}: {result.method}", result.figure.value, _kind(result.system))
        for result in report.results
        if is_shown(result) and result.figure is not None
    ]
    return sorted(found, key=lambda bar: (bar.kind != "ours", -bar.value))


def _kind(system: str) -> Literal["ours", "peer"]:
    return "ours" if system == OURS else "peer"


def _panel(heading: str, bars: Sequence[Bar], y: int) -> tuple[list[str], int]:
    """Bars of one panel share a linear scale: a bar twice as long is twice as much."""
    left = MARGIN + LABEL_WIDTH
    widest = WIDTH - MARGIN - VALUE_WIDTH - left
    longest = max(bar.value for bar in bars)
    y += HEADING
    drawn = [_text(MARGIN, y, heading, "heading")]
    y += GAP + 4
    top = y
    for bar in bars:
        length = max(1.0, bar.value / longest * widest)
        drawn.append(f'<rect class="{bar.kind}" x="{left}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2"/>')
        drawn.append(_text(left - 10, y + 13, bar.label, "label", anchor="end"))
        drawn.append(_text(left + length + 8, y + 13, short(bar.value), "value"))
        y += BAR + GAP
    drawn.append(f'<line class="axis" x1="{left}" y1="{top - 4}" x2="{left}" y2="{y - GAP + 4}"/>')
    return drawn, y


def _durabilities(report: Report) -> list[str]:
    shown = {result.system for result in report.results if result.group in {group for group, _ in PANELS}}
    return [f"{note.title}: {note.durability}." for note in report.systems if note.key in shown and note.version]


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
