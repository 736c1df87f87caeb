"""Cursors of all consumers: decided one at a time on the event loop, stored in groups before they are answered."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from uuid import UUID

from db import cursors
from db.cursors import StoredConsumer, StoredCursor
from db.primary import Primary
from myqueue.protocol.errors import ConsumerNotFound, ManagerUnavailable, MetadataUnavailable, MyQueueError
from myqueue.protocol.internal import Delivered
from myqueue.protocol.models import CommitOffset
from myqueue.protocol.token import Token
from service.logs import Log
from write_manager.claims import (
    MAX_IN_FLIGHT,
    Claimed,
    ConsumerState,
    CursorState,
    commits_from_rows,
    delivered_from_rows,
    in_flight_from_rows,
)
from write_manager.linger import Linger
from write_manager.partition_assignment import NO_CLIENT, HeldLease, MemberClient, PartitionLeases

FLUSH_TIMEOUT_S = 4.0
STORE_AGAIN_S = 1.0
IDLE_S = 600.0  # a consumer that was not used for this long leaves memory


@dataclass(slots=True, eq=False)
class LoadedConsumer:
    topic_id: UUID
    state: ConsumerState
    used_s: float
    leases: PartitionLeases | None = None  # None: no member has polled lately


@dataclass(frozen=True, slots=True)
class CursorStatus:
    offset: int
    given_back: int  # messages below the offset that will be read again
    member: str | None  # to which the partition is leased
    client: MemberClient
    in_flight: int = 0  # messages claimed and not known to be delivered
    is_revoking: bool = False


class Cursors:
    """A request that moves a cursor is answered only after the row is stored: a restart never undoes an answer.

    Memory is right and the row may lag: a row that could not be stored, or may have been, is stored again with the
    state of then. A new process trusts the rows: a standby confirmed its epoch after all of them.
    """

    def __init__(
        self,
        primary: Primary,
        log: Log,
        loop: asyncio.AbstractEventLoop,
        *,
        lease_s: float,
        claim_s: float,
        max_in_flight: int = MAX_IN_FLIGHT,
        on_expired: Callable[[int], None] = lambda _: None,
        on_reassigned: Callable[[int, Iterable[str]], None] = lambda _consumer_id, _members: None,
        decides_since_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`on_expired` counts claims that expired: their messages are read again. `on_reassigned` gets the members of a
        consumer whose leases are not those of their last answer any more. `decides_since_s`: since when leases have
        been renewed without a gap; infinite while all renewals are refused."""
        self._primary = primary
        self._log = log
        self._loop = loop
        self._lease_s = lease_s
        self._claim_s = claim_s
        self._max_in_flight = max_in_flight
        self._on_expired = on_expired
        self._on_reassigned = on_reassigned
        self._decides_since_s = decides_since_s
        self._generations = itertools.count(1)
        self._entries: dict[int, LoadedConsumer] = {}
        self._loading: dict[int, asyncio.Task[LoadedConsumer]] = {}
        self._dirty: set[int] = set()
        self._storing: set[int] = set()  # the group that is being stored
        self._stored: asyncio.Future[Token | MyQueueError | None] | None = None  # of the next group
        self._flushing: asyncio.Task[None] | None = None
        self._waiters = 0  # requests that wait for the next group
        self._linger: Linger | None = None  # while the next group waits for those just answered
        # One transaction at a time: while a group is stored, the next one collects.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cursors")
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="consumers")

    def start(self) -> None:
        """Nothing to do before the first request."""

    def stop(self) -> None:
        if self._dirty:
            try:
                asyncio.run_coroutine_threadsafe(self._flush(), self._loop).result(FLUSH_TIMEOUT_S)
            except TimeoutError:  # nobody was told that they are stored
                self._log.warning("cursors not stored in time", consumers=len(self._dirty | self._storing))
        self._thread.shutdown(wait=False)
        self._readers.shutdown(wait=False)

    async def claim(
        self, consumer_id: int, identity: str, partition_id: int | None, known: Mapping[int, tuple[int, int]]
    ) -> tuple[Claimed, Token | None] | None:
        entry = await self._entry(consumer_id)
        self._expire(consumer_id, entry)
        claimed = entry.state.claim(
            identity, partition_id, known, self._holders(entry), now_s=self._loop.time(), lifetime_s=self._claim_s
        )
        if claimed is None:
            return None
        claimed = replace(claimed)  # as it is now: a repeated request changes the attempt
        try:
            return claimed, await self._store(consumer_id)
        except MyQueueError:
            # It is not answered, so the message stays unread; stored as soon as PostgreSQL takes writes again.
            if entry.state.give_back(identity, claimed.attempt):
                self._mark_dirty(consumer_id)
            raise

    async def deliver(self, consumer_id: int, deliveries: Iterable[Delivered]) -> None:
        """Stored with the next group: if that is lost, the messages are delivered again."""
        entry = await self._entry(consumer_id)
        in_flight = len(entry.state.in_flight)
        for delivered in deliveries:
            entry.state.deliver(delivered["identity"], delivered["partition_id"], delivered["offset"])
        if len(entry.state.in_flight) < in_flight:
            self._mark_dirty(consumer_id)

    async def give_back(self, consumer_id: int, identity: str, attempt: int) -> Claimed | None:
        """The claim that was given back; None when a later attempt owns it."""
        entry = await self._entry(consumer_id)
        claimed = entry.state.give_back(identity, attempt)
        if claimed is not None:
            await self._store(consumer_id)
        return claimed

    async def commit(
        self,
        consumer_id: int,
        member: str,
        identity: str | None,
        wanted: Mapping[int, CommitOffset],
        ends: Mapping[int, int],
    ) -> Token | None:
        entry = await self._entry(consumer_id)
        offsets = {partition_id: commit.offset for partition_id, commit in wanted.items()}
        if identity is None or not entry.state.committed(identity, offsets):
            leases = entry.leases or self._new_leases(entry, 0.0)
            for partition_id, commit in wanted.items():
                leases.check(partition_id, member, commit.generation, self._loop.time())
            entry.state.commit(identity, offsets, ends)
        return await self._store_for_sure(consumer_id)

    async def seek(self, consumer_id: int, offsets: Mapping[int, int]) -> tuple[dict[int, int], Token | None]:
        """The new generations of the partitions."""
        entry = await self._entry(consumer_id)
        leases = entry.leases or self._new_leases(entry, 0.0)
        entry.state.seek(offsets)
        generations = {partition_id: leases.renew(partition_id) for partition_id in offsets}
        self._on_reassigned(consumer_id, leases.to_notify(self._loop.time()))
        return generations, await self._store_for_sure(consumer_id)

    async def lease(
        self,
        consumer_id: int,
        member: str,
        released: Iterable[int],
        leave: bool,
        not_before_s: float,
        *,
        held: Iterable[int] = (),
        may_join: bool = True,
        client: MemberClient = NO_CLIENT,
    ) -> list[tuple[HeldLease, int]]:
        """The leases that the member holds, with the cursors. Leases live in memory only."""
        entry = await self._entry(consumer_id)
        if entry.leases is None:
            entry.leases = self._new_leases(entry, not_before_s)
        now_s = self._loop.time()
        if leave:
            entry.leases.leave(member, now_s)
            self._on_reassigned(consumer_id, entry.leases.to_notify(now_s))
            return []
        leases = entry.leases.poll(member, now_s, released, held=held, may_join=may_join, client=client)
        self._on_reassigned(consumer_id, entry.leases.to_notify(now_s))
        if now_s < not_before_s:
            # An empty answer would mean that other members hold the partitions.
            raise ManagerUnavailable(
                "the write manager has just started; leases are given out again in a moment",
                outcome="not_written",
                retry_after_s=not_before_s - now_s,
            )
        return [(lease, entry.state.cursors[lease.partition_id].offset) for lease in leases]

    async def statuses(self, consumer_id: int) -> dict[int, CursorStatus]:
        return self._statuses(consumer_id, await self._entry(consumer_id))

    def _statuses(self, consumer_id: int, entry: LoadedConsumer) -> dict[int, CursorStatus]:
        self._expire(consumer_id, entry)
        holders = self._holders(entry)
        in_flight = Counter(claimed.partition_id for claimed in entry.state.in_flight.values())
        revoking: set[int] = set() if entry.leases is None else entry.leases.revoking()
        return {
            partition_id: CursorStatus(
                cursor.offset,
                len(cursor.given_back),
                holders.get(partition_id),
                NO_CLIENT if entry.leases is None else entry.leases.client(holders.get(partition_id)),
                in_flight[partition_id],
                partition_id in revoking,
            )
            for partition_id, cursor in entry.state.cursors.items()
        }

    def loaded_statuses(self, consumer_id: int) -> dict[int, CursorStatus] | None:
        """As `statuses`, of a consumer in memory only; None: its row is what counts. Does not count as a use of it."""
        entry = self._entries.get(consumer_id)
        return None if entry is None else self._statuses(consumer_id, entry)

    async def sweep(self) -> None:
        """Expire claims and leases, and evict consumers that are not in use."""
        now_s = self._loop.time()
        for consumer_id, entry in list(self._entries.items()):
            self._expire(consumer_id, entry)
            if entry.leases is not None and entry.leases.idle(now_s):
                entry.leases = None
            is_idle = now_s - entry.used_s > IDLE_S and entry.leases is None and not entry.state.in_flight
            if is_idle and consumer_id not in self._dirty and consumer_id not in self._storing:
                del self._entries[consumer_id]

    async def restart(self, topic_id: UUID, partition_id: int) -> None:
        """The partition's log restarts at 0."""
        if self._loading:  # they may have read the rows from before
            await asyncio.wait(list(self._loading.values()))
        for consumer_id, entry in self._entries.items():
            if entry.topic_id == topic_id and partition_id in entry.state.cursors:
                entry.state.seek({partition_id: 0})
                if entry.leases is not None:
                    entry.leases.renew(partition_id)
                    self._on_reassigned(consumer_id, entry.leases.to_notify(self._loop.time()))
                self._mark_dirty(consumer_id)

    async def remove(self, consumer_id: int) -> None:
        """The consumer was deleted."""
        self._entries.pop(consumer_id, None)

    @property
    def in_flight(self) -> int:
        """Claims of all consumers in memory. For metrics, from any thread."""
        return sum(len(entry.state.in_flight) for entry in list(self._entries.values()))

    def _expire(self, consumer_id: int, entry: LoadedConsumer) -> None:
        expired = entry.state.expire(self._loop.time())
        if expired:
            self._log.info("claims expired", consumer_id=consumer_id, claims=expired)
            self._on_expired(expired)
            self._mark_dirty(consumer_id)

    def _holders(self, entry: LoadedConsumer) -> dict[int, str]:
        return {} if entry.leases is None else entry.leases.holders(self._loop.time())

    def _new_leases(self, entry: LoadedConsumer, not_before_s: float) -> PartitionLeases:
        return PartitionLeases(
            tuple(entry.state.cursors),
            self._generation,
            ttl_s=self._lease_s,
            not_before_s=not_before_s,
            decides_since_s=self._decides_since_s,
        )

    def _generation(self) -> int:
        """Higher than any of an earlier write manager."""
        return ((self._primary.epoch or 0) << 32) + next(self._generations)

    async def _entry(self, consumer_id: int) -> LoadedConsumer:
        entry = self._entries.get(consumer_id)
        if entry is not None:
            entry.used_s = self._loop.time()
            return entry
        loading = self._loading.get(consumer_id)
        if loading is None:
            loading = self._loading[consumer_id] = asyncio.create_task(self._load(consumer_id))
            loading.add_done_callback(lambda _: self._loading.pop(consumer_id))
        return await asyncio.shield(loading)

    async def _load(self, consumer_id: int) -> LoadedConsumer:
        row = await self._loop.run_in_executor(self._readers, self._read, consumer_id)
        if row is None:
            raise ConsumerNotFound()
        state = ConsumerState(
            {c.partition_id: CursorState(c.offset, list(c.given_back), c.skipped) for c in row.cursors},
            row.next_partition,
            in_flight_from_rows(row.claims_in_flight, self._loop.time()),
            delivered_from_rows(row.recent_claims),
            commits_from_rows(row.recent_commits),
            max_in_flight=self._max_in_flight,
        )
        entry = self._entries[consumer_id] = LoadedConsumer(row.topic_id, state, self._loop.time())
        return entry

    def _read(self, consumer_id: int) -> StoredConsumer | None:
        with self._primary.reading() as session:
            return cursors.load(session, consumer_id)

    def _mark_dirty(self, consumer_id: int) -> "asyncio.Future[Token | MyQueueError | None]":
        """To be stored with the next group."""
        self._dirty.add(consumer_id)
        if self._stored is None:
            self._stored = self._loop.create_future()
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())
        return self._stored

    def _mark_dirty_again(self, consumers: Iterable[int]) -> None:
        """State that could not be stored stands in memory, so it has to be stored in the end."""
        for consumer_id in consumers:
            if consumer_id in self._entries:
                self._mark_dirty(consumer_id)

    async def _store(self, consumer_id: int) -> Token | None:
        stored = self._mark_dirty(consumer_id)
        self._waiters += 1
        if self._linger is not None:
            self._linger.arrived()
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                result = await asyncio.shield(stored)
        except TimeoutError:
            raise MetadataUnavailable(outcome="unknown") from None
        if isinstance(result, MyQueueError):
            raise type(result)(result.message, outcome=result.outcome)  # each waiter its own
        return result

    async def _store_for_sure(self, consumer_id: int) -> Token | None:
        """The decision stands in memory and is stored with a later group if not with this one."""
        try:
            return await self._store(consumer_id)
        except MyQueueError as error:
            error.outcome = "unknown"
            raise

    async def _flush(self) -> None:
        while self._dirty:
            dirty, self._dirty = self._dirty, set()
            self._storing = dirty
            waiters, self._waiters = self._waiters, 0
            began_s = self._loop.time()
            stored, self._stored = self._stored, None
            # A consumer may be deleted, with its topic, before its cursors are stored.
            states = {i: self._entries[i].state for i in sorted(dirty) if i in self._entries}
            moved = [state.moved for state in states.values()]
            rows = [
                _row(consumer_id, self._entries[consumer_id].topic_id, state) for consumer_id, state in states.items()
            ]
            result: Token | MyQueueError | None
            try:
                result = await self._loop.run_in_executor(self._thread, self._save, rows)
            except Exception as error:  # noqa: BLE001 every waiter gets an answer
                self._log.warning("cursors not stored", error=str(error), consumers=len(rows))
                for state, partitions in zip(states.values(), moved, strict=True):
                    state.moved |= partitions
                self._loop.call_later(STORE_AGAIN_S, self._mark_dirty_again, tuple(states))
                result = error if isinstance(error, MyQueueError) else MetadataUnavailable(outcome="unknown")
            self._storing = set()
            if stored is not None:
                stored.set_result(result)
            expected = waiters + self._waiters
            if expected > 1 and not isinstance(result, MyQueueError):
                await self._lingered(expected, self._loop.time() - began_s)

    async def _lingered(self, expected: int, round_trip_s: float) -> None:
        ended: asyncio.Future[None] = self._loop.create_future()
        self._linger = Linger(lambda: self._waiters, lambda: ended.set_result(None))
        self._linger.begin(expected, round_trip_s)
        await ended
        self._linger = None

    def _save(self, rows: list[StoredConsumer]) -> Token | None:
        with self._primary.transaction() as transaction:
            cursors.save(transaction.session, rows)
        return transaction.token


def _row(consumer_id: int, topic_id: UUID, state: ConsumerState) -> StoredConsumer:
    """With the cursors that moved since they were last stored."""
    moved, state.moved = state.moved, set()
    return StoredConsumer(
        consumer_id,
        topic_id,
        state.next_partition,
        state.in_flight_rows(),
        state.delivered_rows(),
        state.commit_rows(),
        [
            StoredCursor(p, state.cursors[p].offset, tuple(state.cursors[p].given_back), state.cursors[p].skipped)
            for p in sorted(moved)
        ],
    )
