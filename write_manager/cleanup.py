"""Cleanup of the catalog: stores last uses, expires nameless registrations, deletes the rows of deleted topics."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy.orm import Session

from db import cleanup
from db.cleanup import RegistrationTable
from db.models import ConsumerRow, ProducerMetadata
from db.primary import Primary
from service.logs import Log
from write_manager.brokers import Brokers
from write_manager.cursors import Cursors
from write_manager.identity_cache import IdentityCache
from write_manager.metadata_cache import MetadataCache

RUN_S = 2.0  # at most in each run, to leave time and disk to other jobs
STAMPS_PER_TRANSACTION = 1000

T = TypeVar("T")


class Cleanup:
    """A job on a thread. Each slice is a transaction of its own; the next run continues where this one stopped."""

    def __init__(
        self,
        primary: Primary,
        cache: MetadataCache,
        brokers: Brokers,
        cursors: Cursors,
        loop: asyncio.AbstractEventLoop,
        log: Log,
        *,
        nameless_ttl_s: float,
        deleted_topic_ttl_s: float,
        grace_s: float = 0.0,
    ) -> None:
        """Nothing expires within `grace_s` of the activation: while the system was off, no use could be stored."""
        self._primary = primary
        self._cache = cache
        self._brokers = brokers
        self._cursors = cursors
        self._loop = loop
        self._log = log
        self._nameless_ttl = timedelta(seconds=nameless_ttl_s)
        self._deleted_topic_ttl = timedelta(seconds=deleted_topic_ttl_s)
        self._kinds: Sequence[tuple[RegistrationTable, IdentityCache[Any]]] = (
            (ProducerMetadata, cache.producers),
            (ConsumerRow, cache.consumers),
        )
        self._grace_s = grace_s
        self._without_orphans: set[str] = set()  # deleted topics that have no rows left

    def run(self) -> None:
        """First the stamps: a registration that was used a moment ago must not expire."""
        deadline_s = time.monotonic() + RUN_S
        for table, identities in self._kinds:
            self._on_loop(_call(identities.sweep))
            self._stamp(table, identities)
        may_expire = time.monotonic() >= self._cache.activated_s + self._grace_s
        for table, identities in self._kinds if may_expire else ():
            find = partial(cleanup.expired, table=table, ttl=self._nameless_ttl)
            self._delete(table, identities, find, "silent and without a name", deadline_s)
        self._delete_orphans(deadline_s)
        self._forget_deleted_topics()

    def _stamp(self, table: RegistrationTable, identities: IdentityCache[Any]) -> None:
        used = list(self._on_loop(_call(identities.take_used)))
        while used:
            try:
                with self._primary.transaction() as transaction:
                    cleanup.stamp(transaction.session, table, used[:STAMPS_PER_TRANSACTION])
            except Exception:
                self._on_loop(_call(partial(identities.put_back_used, used)))
                raise
            used = used[STAMPS_PER_TRANSACTION:]

    def _delete_orphans(self, deadline_s: float) -> None:
        deleted = set(self._cache.deleted_topic_ids)
        while deleted - self._without_orphans and time.monotonic() < deadline_s:
            with self._primary.reading() as session:
                orphaned = cleanup.topics_with_orphans(session)
            if not orphaned:
                self._without_orphans = deleted
            for topic_id in orphaned:
                for table, identities in self._kinds:
                    find = partial(cleanup.orphans, table=table, topic_id=topic_id)
                    self._delete(table, identities, find, "of a deleted topic", deadline_s)

    def _delete(
        self,
        table: RegistrationTable,
        identities: IdentityCache[Any],
        find: Callable[[Session], Sequence[int]],
        why: str,
        deadline_s: float,
    ) -> None:
        """In slices, until nothing or no time is left."""
        count = 0
        while time.monotonic() < deadline_s:
            with self._primary.reading() as session:
                some = find(session)
            if not some:
                break
            try:
                with self._primary.transaction() as transaction:
                    cleanup.delete_registered(transaction.session, table, some)
            finally:  # after an unknown outcome the next look-up queries PostgreSQL
                self._on_loop(self._drop(identities, some))
            count += len(some)
        if count:
            self._log.info("registrations deleted", table=table.__tablename__, why=why, count=count)

    async def _drop(self, identities: IdentityCache[Any], gone: Sequence[int]) -> None:
        identities.remove(gone)
        if identities is self._cache.consumers:
            for consumer_id in gone:
                await self._cursors.remove(consumer_id)

    def _forget_deleted_topics(self) -> None:
        """A broker that is away for longer keeps its replicas of them: no later request deletes them."""
        by_broker = self._brokers.replicas()
        if not self._cache.deleted_topic_ids or self._brokers.active_ids() - by_broker.keys():
            return  # not all brokers have reported their replicas yet
        held = {UUID(topic_id) for of_broker in by_broker.values() for topic_id, _ in of_broker.replicas}
        with self._primary.reading() as session:
            gone = cleanup.forgettable_topics(session, self._deleted_topic_ttl, held)
        if not gone:
            return
        with self._primary.transaction() as transaction:
            cleanup.forget_topics(transaction.session, gone)
        for topic_id in map(str, gone):
            self._cache.deleted_topic_ids.discard(topic_id)
            self._without_orphans.discard(topic_id)

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _call(call: Callable[[], T]) -> T:
    return call()
