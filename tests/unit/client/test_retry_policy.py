"""When to try again and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.transport import RetryPolicy, SessionToken, is_retriable, newest, retry_after_s

JITTER = st.floats(0, 1, exclude_max=True)


@given(failures=st.integers(1, 10_000), jitter=JITTER)
def test_a_pause_is_bounded(failures: int, jitter: float) -> None:
    policy = RetryPolicy(first_pause_s=0.1, longest_pause_s=2.0)
    assert 0 <= policy.pause_s(failures, None, jitter) <= 2.0


@given(failures=st.integers(1, 20), asked=st.floats(0, 1000), jitter=JITTER)
def test_a_pause_is_never_shorter_than_the_server_asked_for(failures: int, asked: float, jitter: float) -> None:
    assert RetryPolicy().pause_s(failures, asked, jitter) >= asked


def test_pauses_double() -> None:
    policy = RetryPolicy(first_pause_s=0.1, longest_pause_s=1.0)
    assert [policy.pause_s(failures, None, 1.0) for failures in (1, 2, 3, 4, 5)] == [0.1, 0.2, 0.4, 0.8, 1.0]


@pytest.mark.parametrize(
    ("status", "body", "again"),
    [
        (503, {"retriable": True}, True),
        (503, {"retriable": False}, False),  # the body knows better than the status
        (507, {"retriable": True}, True),
        (421, {"retriable": True}, True),
        (502, None, True),
        (429, "<html>", True),
        (404, None, False),
        (500, {}, False),
        (503, {"retriable": "yes"}, True),
    ],
)
def test_what_is_worth_another_try(status: int, body: object, again: bool) -> None:
    assert is_retriable(status, body) is again


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("3", 3.0),
        ("0", 0.0),
        (None, None),
        ("", None),
        ("-1", None),
        ("soon", None),
        ("²", None),
        ("9" * 400, 999999999.0),
    ],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header) == seconds


def test_the_token_that_is_further_counts_whatever_arrives_last() -> None:
    token = SessionToken()
    for arrived in ("1-a0", None, "1-b0", "1-9f", ""):
        token.learn(arrived)
    assert token.value == "1-b0"
    token.learn("2-1")
    assert token.value == "2-1"


def test_a_token_of_unknown_form_is_kept_as_it_comes() -> None:
    assert newest("1-ff", "v2:whatever") == "v2:whatever"
    assert newest("v2:whatever", "1-1") == "1-1"
