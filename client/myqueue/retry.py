"""When to try again and for how long: decisions only, the transport does the waiting."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter under one total deadline."""

    deadline_s: float = 30.0  # for one call, all attempts and pauses together
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0

    def pause_s(self, failures: int, retry_after_s: float | None, jitter: float) -> float:
        """How long to wait after this many failures. `jitter` is uniform in [0, 1).

        A server's Retry-After is the least; the jitter on top keeps clients from coming back all at once.
        """
        ceiling = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 30))
        return max(0.0, retry_after_s or 0.0) + jitter * ceiling


DEFAULT_RETRY = RetryPolicy()

# Statuses worth another try when the body does not say so itself, because it is not one of ours.
_RETRIABLE_STATUSES = frozenset({408, 421, 429, 502, 503, 504, 507})


def is_retriable(status: int, body: object) -> bool:
    """The answer's own word counts; without one, its status does."""
    if isinstance(body, dict) and isinstance(body.get("retriable"), bool):
        return bool(body["retriable"])
    return status in _RETRIABLE_STATUSES


def retry_after_s(header: str | None) -> float | None:
    """Only the form in seconds: ours has no other, and a date would need clocks that agree."""
    if header is None or not header.isascii() or not header.isdecimal():
        return None
    return float(header[:9])
