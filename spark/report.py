"""`python -m spark report`: one HTML page with plots of sizes, rates, lag and skew, which needs nothing but itself."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from myqueue.protocol import routes
from service.stats_plots import FIGURES, plot_of
from service.svg_plot import svg
from spark.config import JOB_NAMES, SparkFailure
from spark.stats_client import Json, StatsReader

POINTS_PER_LINE = 200
MAX_POINTS = 15_000  # of one request
RUNS_SHOWN = 10
_UNITS_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_STYLE = """
body{font:14px/1.5 system-ui,sans-serif;color:#1f2328;max-width:1520px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{color:#57606a;margin:.2rem 0 1rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(480px,1fr));gap:1rem}
.plots svg{width:100%;height:auto;border:1px solid #d8dee4;border-radius:6px}
table{border-collapse:collapse}th,td{padding:.2rem .9rem .2rem 0;text-align:left}td.n,th.n{text-align:right}
.bad{color:#cf222e}
"""


def seconds_of(text: str) -> int:
    """Of `90m`, `24h`, `7d` or `2w`."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdecimal() and 0 < int(number) < 100_000 and unit in _UNITS_S):
        raise ValueError("must be a duration such as 90m, 24h, 7d or 2w")
    return int(number) * _UNITS_S[unit]


def write_report(url: str, last_s: int, output: Path) -> str:
    reads = StatsReader(url)
    try:
        end_ms = time.time_ns() // 1_000_000
        start_ms = end_ms - last_s * 1000
        topics, consumers = (_totals(reads, of, start_ms, end_ms) for of in ("topics", "consumers"))
        runs = [run for job in JOB_NAMES for run in reads.runs(job, RUNS_SHOWN)]
    finally:
        reads.close()
    text = page(url, topics, consumers, runs, start_ms, end_ms)
    try:
        _replace(output, text)
    except OSError as error:
        raise SparkFailure(f"cannot write {output}: {error.strerror}") from error
    return f"{output}: {len(topics):,} topics, {len(consumers):,} consumers, {len(text) // 1024:,} KiB"


def _totals(reads: StatsReader, of: str, start_ms: int, end_ms: int) -> list[Json]:
    """With fewer points of each when there are very many of them."""
    route = routes.TOPIC_TOTALS if of == "topics" else routes.CONSUMER_TOTALS
    count = max(1, len(reads.totals(route, of)))
    points = max(2, min(POINTS_PER_LINE, MAX_POINTS // count))
    step_ms = max(1000, (end_ms - start_ms) // points)
    return reads.totals(route, of, **{"from": start_ms, "to": end_ms + 1, "step": step_ms})


def _replace(output: Path, text: str) -> None:
    """At once: somebody may have the page of the last time open."""
    with NamedTemporaryFile("w", dir=output.parent, prefix=".report-", delete=False, encoding="utf-8") as file:
        file.write(text)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(output)


def page(
    url: str, topics: Sequence[Json], consumers: Sequence[Json], runs: Sequence[Json], start_ms: int, end_ms: int
) -> str:
    """Pure."""
    plots = {
        metric: svg(plot_of(metric, topics if figure.of == "topics" else consumers, start_ms, end_ms, None))
        for metric, figure in FIGURES.items()
    }
    sections = (
        ("Sizes", ("messages", "payload_bytes", "stored_bytes", "skew")),
        ("Rates", ("rate_in", "rate_out")),
        ("Lag", ("lag_messages", "lag_bytes", "lag_seconds", "catch_up_seconds")),
    )
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>myqueue: {escape(url)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(url)}</h1><p>{_moment(start_ms)} to {_moment(end_ms)} UTC</p>",
    ]
    for title, metrics in sections:
        parts += [f"<h2>{title}</h2>", '<div class="plots">', *(plots[metric] for metric in metrics), "</div>"]
    parts += ["<h2>Runs of jobs</h2>", _run_table(runs), "</body></html>"]
    return "\n".join(parts) + "\n"


def _run_table(runs: Sequence[Json]) -> str:
    headings = ("job", "started (UTC)", "seconds", "outcome", "rows", "left out", "message")
    rows = []
    for run in runs:
        took = None if run["ended_at"] is None else (run["ended_at"] - run["started_at"]) / 1000
        cells = (
            _cell(run["job"]),
            _cell(_moment(run["started_at"])),
            _cell("" if took is None else f"{took:.1f}", "n"),
            _cell(run["outcome"], "" if run["outcome"] in ("succeeded", "running") else "bad"),
            _cell(f"{run['rows']:,}", "n"),
            _cell(f"{run['left_out']:,}", "n"),
            _cell(run["message"] or ""),
        )
        rows.append("<tr>" + "".join(cells) + "</tr>")
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>" if rows else "<p>No job has run yet.</p>"


def _cell(value: Any, kind: str = "") -> str:
    return f'<td class="{kind}">{escape(str(value))}</td>' if kind else f"<td>{escape(str(value))}</td>"


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
