"""When something has to be looked at next, without a tick over everything that has nothing to do."""

from heapq import heappop, heappush

from broker.raft.identity import GroupId

Key = GroupId | tuple[str, int]


class Deadlines:
    """Wakes a key at or before the time it asked for; the owner looks itself whether it is really due.

    Deadlines that move further away, the usual case, cost nothing until the old one comes up.
    """

    __slots__ = ("_count", "_heap", "_planned")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Key]] = []
        self._planned: dict[Key, int] = {}
        self._count = 0  # ties are broken by age, so that a replay is exact

    def plan(self, key: Key, due: int) -> None:
        planned = self._planned.get(key)
        if planned is None or due < planned:
            self._planned[key] = due
            self._count += 1
            heappush(self._heap, (due, self._count, key))

    def forget(self, key: Key) -> None:
        self._planned.pop(key, None)

    def next_due(self) -> int | None:
        while self._heap and self._planned.get(self._heap[0][2]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self, now: int) -> Key | None:
        due = self.next_due()
        if due is None or due > now:
            return None
        key = heappop(self._heap)[2]
        del self._planned[key]
        return key
