"""A read that has waited at another manager waits for the rest only."""

import pytest

from myqueue.protocol.http_headers import ELAPSED
from myqueue.protocol.models import Poll
from read_manager.long_poll import with_remaining_wait
from service.http_messages import HttpRequest


@pytest.mark.parametrize(
    ("wait_ms", "elapsed", "rest_ms"),
    [
        (30_000, None, 30_000),
        (30_000, "0.000", 30_000),
        (30_000, "12.345", 17_655),
        (90_000, "12.000", 18_000),  # the longest wait is 30 s
        (5_000, "12.345", 0),
        (0, "12.345", 0),
        (5_000, "-1", 5_000),
        (5_000, "nan", 5_000),
        (5_000, "1e9", 5_000),
        (5_000, "", 5_000),
    ],
)
def test_what_is_left(wait_ms: int, elapsed: str | None, rest_ms: int) -> None:
    headers = {} if elapsed is None else {ELAPSED.lower(): elapsed}
    request = HttpRequest("POST", "/", {}, "", headers, b"", None)
    assert with_remaining_wait(Poll(wait_ms=wait_ms), request).wait_ms == rest_ms
