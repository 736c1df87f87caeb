"""The identities of producers, or of consumers, by id: an LRU cache in front of PostgreSQL."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from myqueue.protocol.errors import MetadataUnavailable

MAX_ENTRIES = 50_000
IDLE_S = 3600.0
LOOK_UP_TIMEOUT_S = 3.0


class Identity(Protocol):
    @property
    def name(self) -> str | None: ...


T = TypeVar("T", bound=Identity)


@dataclass(slots=True)
class _CachedIdentity(Generic[T]):
    identity: T
    used_s: float
    stamped_s: float  # the last use that is stored, or about to be


class IdentityCache(Generic[T]):
    """Runs on the event loop only.

    Nameless producers and consumers expire when they were not used for a long time. So their last use is stored, but
    not each use: only one that is `stamp_after_s` later than the stored one.
    """

    def __init__(
        self,
        read: Callable[[int], tuple[T, float] | None],
        threads: Executor,
        *,
        stamp_after_s: float,
        max_entries: int = MAX_ENTRIES,
        idle_s: float = IDLE_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` queries PostgreSQL, in a thread: the identity, and how long ago its stored last use was."""
        self._read = read
        self._threads = threads
        self._stamp_after_s = stamp_after_s
        self._max_entries = max_entries
        self._idle_s = idle_s
        self._now_s = now_s
        self._entries: OrderedDict[int, _CachedIdentity[T]] = OrderedDict()  # the least recently used first
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
            return await asyncio.wait_for(asyncio.shield(loading), LOOK_UP_TIMEOUT_S)
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
        self._entries[id] = _CachedIdentity(identity, now_s, now_s - silent_s)
        self._entries.move_to_end(id)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def remove(self, ids: Iterable[int]) -> None:
        """They were deleted: a read of them in flight may be out of date, so its result is not cached."""
        for id in ids:
            self._entries.pop(id, None)
            self._loading.pop(id, None)
            self._used.discard(id)

    def sweep(self) -> None:
        """Evict entries that were not used for long."""
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
        """Their stamps could not be stored."""
        self._used.update(ids)
