"""The report: one page, nothing fetched from elsewhere, foreign text escaped."""

import pytest

from spark.report import page, seconds_of

HOUR = 3_600_000


def test_the_page_needs_nothing_but_itself() -> None:
    figures = {"messages": 5, "payload_bytes": 50, "stored_bytes": None, "skew": 1.0, "rate_in_per_minute": 0.0}
    topic = {"topic": "orders", "history": [{**figures, "computed_at": 2 * HOUR}, {**figures, "computed_at": HOUR}]}
    run = {"job": "consumer_lag", "started_at": 0, "ended_at": 1500, "outcome": "failed", "rows": 3, "left_out": 7}
    text = page("http://localhost", [topic], [], [{**run, "message": "<img src=x>"}], 0, 2 * HOUR)
    assert text.count("<svg") == text.count("</svg>") == 10
    assert "orders" in text
    assert "&lt;img src=x&gt;" in text
    for outside in ("<script", "<link", "<img", " src=http", "url(", "@import"):
        assert outside not in text


def test_durations() -> None:
    assert [seconds_of(text) for text in ("90m", "24h", "2w")] == [5400, 86400, 1_209_600]
    for text in ("", "h", "0h", "-1h", "5", "1y", "²h"):
        with pytest.raises(ValueError, match="duration"):
            seconds_of(text)
