"""How long the application may stay away from its consumer before that gives its partitions to others.

No threads, no IO; the caller locks. The background thread checks it at every renewal of the leases: a process that
hangs would keep its partitions for ever otherwise, because that thread goes on.
"""

from myqueue.argument_checks import WrongValue
from myqueue.protocol.errors import MyQueueError

DEFAULT_MAX_POLL_INTERVAL_S = 300.0


class MaxPollIntervalExceeded(MyQueueError):
    """The application did not poll for longer than `max_poll_interval_s`: other members got its partitions."""

    error_code, http_status = 40930, 409
    default_message = "the application did not poll for longer than max_poll_interval_s"


class PollInterval:
    def __init__(self, max_s: float, whose: str) -> None:
        """`whose`: the consumer, for its error."""
        if not max_s > 0:
            raise WrongValue(f"max_poll_interval_s must be more than 0, not {max_s!r}")
        self._max_s = max_s
        self._whose = whose
        self._is_polling = False
        self._last_poll = 0.0
        self._progress = -1
        self._left_at: float | None = None

    @property
    def is_exceeded(self) -> bool:
        """The member has left, and joins again with the application's next call."""
        return self._left_at is not None

    def enter(self, now: float) -> MaxPollIntervalExceeded | None:
        """The application asks for messages; an error if it was away for too long, once."""
        error = self.error(now)
        self._left_at = None
        self._is_polling = error is None
        self._last_poll = now
        return error

    def leave(self, now: float) -> None:
        """The application has got its messages."""
        self._is_polling = False
        self._last_poll = now

    def check(self, progress: int, now: float) -> bool:
        """Whether the member has to leave now. `progress` is any number that differs after a message was taken from
        those that were handed out together: that needs no call."""
        if self._is_polling or progress != self._progress:
            self._progress = progress
            self._last_poll = now
        elif self._left_at is None and now - self._last_poll >= self._max_s:
            self._left_at = now
            return True
        return False

    def error(self, now: float) -> MaxPollIntervalExceeded | None:
        if self._left_at is None:
            return None
        return MaxPollIntervalExceeded(
            f"{self._whose}: no poll for {now - self._last_poll:.0f} seconds, and max_poll_interval_s is"
            f" {self._max_s:g}: this member lost its partitions, and what it had read and not committed is delivered"
            " again. Poll again to go on; to avoid it handle messages faster, take fewer of them at a time, or set a"
            " larger max_poll_interval_s"
        )
