"""What does not work in the background, and since when: the reader is told when it lasts. Pure; the caller locks."""

from collections.abc import Iterable

from myqueue.protocol.errors import MyQueueError

LEASES, COMMITS = -1, -2  # beside the partitions


class Troubles:
    def __init__(self, patience_s: float) -> None:
        self.fatal: MyQueueError | None = None  # no waiting helps
        self._patience_s = patience_s
        self._since: dict[int, tuple[float, MyQueueError]] = {}

    def begin(self, where: int, error: MyQueueError, now: float) -> None:
        since = self._since.get(where, (now, error))[0]
        self._since[where] = (since, error)

    def over(self, where: int) -> None:
        self._since.pop(where, None)

    def forget_others(self, partitions: Iterable[int]) -> None:
        """What became of other partitions is somebody else's business now."""
        kept = {LEASES, COMMITS, *partitions}
        self._since = {where: trouble for where, trouble in self._since.items() if where in kept}

    def to_tell(self, now: float) -> MyQueueError | None:
        """What has lasted for too long; it is told once, then the patience begins anew."""
        if self.fatal is not None:
            return self.fatal
        for where, (since, error) in self._since.items():
            if now - since >= self._patience_s:
                self._since[where] = (now, error)
                return error
        return None

    def next_at(self) -> float | None:
        """When the next one has lasted for too long."""
        return min((since + self._patience_s for since, _ in self._since.values()), default=None)
