"""Producers, or consumers, by id: those in use are in memory, the others one query away."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from myqueue.protocol.errors import MetadataUnavailable

KEPT = 50_000
IDLE_S = 3600.0
LOOK_UP_S = 3.0


class Identity(Protocol):
    @property
    def name(self) -> str | None: ...


T = TypeVar("T", bound=Identity)


@dataclass(slots=True)
class _Entry(Generic[T]):
    identity: T
    used_s: float
    stamped_s: float  # when PostgreSQL was last told of a use


class Identities(Generic[T]):
    """On the event loop only.

    What has no name expires when it was not used for a long time. So the last use is stored, but not each: one that is
    `stamp_after_s` later than the stored one.
    """

    def __init__(
        self,
        read: Callable[[int], tuple[T, float] | None],
        threads: Executor,
        *,
        stamp_after_s: float,
        kept: int = KEPT,
        idle_s: float = IDLE_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` asks PostgreSQL, in a thread: the identity, and how long ago it was used as far as is stored."""
        self._read = read
        self._threads = threads
        self._stamp_after_s = stamp_after_s
        self._kept = kept
        self._idle_s = idle_s
        self._now_s = now_s
        self._entries: OrderedDict[int, _Entry[T]] = OrderedDict()  # the least recently used first
        self._loading: dict[int, asyncio.Task[T | None]] = {}
        self._used: set[int] = set()  # to be stamped

    def __contains__(self, id: object) -> bool:
        return id in self._entries

    def cached(self, id: int) -> T | None:
        entry = self._entries.get(id)
        if entry is None:
            return None
        entry.used_s = now_s = self._now_s()
        self._entries.move_to_end(id)
        if now_s - entry.stamped_s > self._stamp_after_s and entry.identity.name is None:
            entry.stamped_s = now_s
            self._used.add(id)
        return entry.identity

    async def find(self, id: int) -> T | None:
        found = self.cached(id)
        if found is not None:
            return found
        loading = self._loading.get(id)
        if loading is None:
            loading = self._loading[id] = asyncio.create_task(self._load(id))
        try:
            return await asyncio.wait_for(asyncio.shield(loading), LOOK_UP_S)
        except TimeoutError:
            raise MetadataUnavailable(outcome="not_written") from None

    async def _load(self, id: int) -> T | None:
        task = asyncio.current_task()
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, self._read, id)
            if found is None:
                return None  # not kept: it may be registered at any time
            identity, silent_s = found
            if self._loading.get(id) is task:  # else it was removed meanwhile
                self.add(id, identity, silent_s)
                self.cached(id)
            return identity
        finally:
            if self._loading.get(id) is task:
                del self._loading[id]

    def add(self, id: int, identity: T, silent_s: float = 0.0) -> None:
        now_s = self._now_s()
        self._entries[id] = _Entry(identity, now_s, now_s - silent_s)
        self._entries.move_to_end(id)
        if len(self._entries) > self._kept:
            self._entries.popitem(last=False)

    def remove(self, ids: Iterable[int]) -> None:
        """They were deleted: also what is being read of them right now may be out of date."""
        for id in ids:
            self._entries.pop(id, None)
            self._loading.pop(id, None)
            self._used.discard(id)

    def sweep(self) -> None:
        """Evict those that were not used for long."""
        idle_since_s = self._now_s() - self._idle_s
        while self._entries:
            id, entry = next(iter(self._entries.items()))
            if entry.used_s > idle_since_s:
                return
            del self._entries[id]

    def take_used(self) -> set[int]:
        used, self._used = self._used, set()
        return used

    def put_back_used(self, ids: Iterable[int]) -> None:
        """They could not be stamped."""
        self._used.update(ids)
