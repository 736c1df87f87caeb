"""How tests wait: to a deadline for something that happens, or throughout a time for something that must not."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_S = 0.05


def until(
    look: Callable[[], T | None], *, within_s: float = 10, what: str = "the condition holds", pause_s: float = PAUSE_S
) -> T:
    """The first true value that `look` returns; fails at the deadline."""
    deadline_s = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {within_s} s: {what}; last seen: {found!r}")
        time.sleep(pause_s)


def throughout(holds: Callable[[], object], *, for_s: float, what: str, pause_s: float = PAUSE_S) -> None:
    """Fails as soon as the condition does not hold."""
    end_s = time.monotonic() + for_s
    while True:
        assert holds(), f"not throughout {for_s} s: {what}"
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            return
        time.sleep(min(pause_s, left_s))


def let_pass(seconds: float) -> None:
    """Time that is itself the input: a client that pauses, a server that delays, a clock that must move on."""
    time.sleep(seconds)
