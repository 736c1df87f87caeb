"""Writes snapshot records now and then, so that a restart has only so many entries to go through."""

from broker.driver import Driver
from broker.raft.events import WriteSnapshot

MAX_REPLAY = 50_000


class Snapshots:
    """The bound is over all partitions together, since one restart opens all of them."""

    def __init__(self, driver: Driver, max_replay: int = MAX_REPLAY) -> None:
        self._driver = driver
        self._max_replay = max_replay

    def run(self) -> None:
        behind = self._driver.applied_since_snapshot()
        total = sum(behind.values())
        for group_id, entries in sorted(behind.items(), key=lambda item: -item[1]):
            if total <= self._max_replay:
                return
            self._driver.tell(group_id, WriteSnapshot())
            total -= entries
