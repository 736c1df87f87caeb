"""Errors of the background thread: raised to the application once they last too long. Pure; the caller locks."""

from collections.abc import Iterable

from myqueue.protocol.errors import MyQueueError

LEASES, COMMITS = -1, -2  # keys of errors, beside the partitions


class BackgroundErrors:
    def __init__(self, grace_s: float) -> None:
        self.fatal: MyQueueError | None = None  # raised at once, and by every later call
        self.commit: MyQueueError | None = None  # of a commit that nobody waited for: raised once
        self._grace_s = grace_s
        self._since: dict[int, tuple[float, MyQueueError]] = {}

    def record(self, where: int, error: MyQueueError, now: float) -> None:
        since = self._since.get(where, (now, error))[0]
        self._since[where] = (since, error)

    def clear(self, where: int) -> None:
        self._since.pop(where, None)

    def keep_only(self, partitions: Iterable[int]) -> None:
        """Drops errors of partitions that this consumer no longer has."""
        kept = {LEASES, COMMITS, *partitions}
        self._since = {where: error for where, error in self._since.items() if where in kept}

    def overdue(self, now: float) -> MyQueueError | None:
        """An error to raise now: one that has lasted longer than the grace period is returned once per period.

        Without its traceback, to which every raise adds.
        """
        if self.fatal is not None:
            return self.fatal.with_traceback(None)
        if self.commit is not None:
            return self.take_commit_error()
        for where, (since, error) in self._since.items():
            if now - since >= self._grace_s:
                self._since[where] = (now, error)
                return error.with_traceback(None)
        return None

    def take_commit_error(self) -> MyQueueError | None:
        error, self.commit = self.commit, None
        return error

    def raise_commit_error(self) -> None:
        if (error := self.take_commit_error()) is not None:
            raise error

    def next_overdue(self) -> float | None:
        """When the next error becomes overdue."""
        return min((since + self._grace_s for since, _ in self._since.values()), default=None)
