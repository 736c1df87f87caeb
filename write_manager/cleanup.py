"""What keeps the catalog from growing for ever: the last uses, expiry, and what deleted topics left."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy.orm import Session

from db import cleanup
from db.cleanup import Registered
from db.models import ConsumerRow, ProducerMetadata
from db.primary import Primary
from service.logs import Log
from write_manager.cursors import Cursors
from write_manager.directory import Directory
from write_manager.identities import Identities
from write_manager.membership import Membership
from write_manager.on_loop import OnLoop

# At most this long in each run: other background jobs and the disks want their turn, too.
RUN_S = 2.0
STAMPED_AT_ONCE = 1000

T = TypeVar("T")


class Cleanup:
    """A background job; each slice is a fenced transaction of its own. What one run leaves over, the next one does."""

    def __init__(
        self,
        primary: Primary,
        directory: Directory,
        members: Membership,
        cursors: Cursors,
        on_loop: OnLoop,
        log: Log,
        *,
        nameless_ttl_s: float,
        deleted_topic_ttl_s: float,
        grace_s: float = 0.0,
    ) -> None:
        """Nothing expires within `grace_s` of the start: while the system was off nobody could be seen."""
        self._primary = primary
        self._directory = directory
        self._members = members
        self._cursors = cursors
        self._on_loop = on_loop
        self._log = log
        self._nameless_ttl = timedelta(seconds=nameless_ttl_s)
        self._deleted_topic_ttl = timedelta(seconds=deleted_topic_ttl_s)
        self._kinds: Sequence[tuple[Registered, Identities[Any]]] = (
            (ProducerMetadata, directory.producers),
            (ConsumerRow, directory.consumers),
        )
        self._expire_from_s = time.monotonic() + grace_s
        self._without_orphans: set[str] = set()  # ids of deleted topics that have no rows left

    def run(self) -> None:
        """First the stamps: what was used a moment ago must not expire."""
        deadline_s = time.monotonic() + RUN_S
        for table, identities in self._kinds:
            self._on_loop.run(_call(identities.sweep))
            self._stamp(table, identities)
        for table, identities in self._kinds if time.monotonic() >= self._expire_from_s else ():
            find = partial(cleanup.silent, table=table, ttl=self._nameless_ttl)
            self._delete(table, identities, find, "silent and without a name", deadline_s)
        self._delete_orphans(deadline_s)
        self._forget_deleted_topics()

    def _stamp(self, table: Registered, identities: Identities[Any]) -> None:
        used = list(self._on_loop.run(_call(identities.take_used)))
        while used:
            try:
                with self._primary.transaction() as transaction:
                    cleanup.stamp(transaction.session, table, used[:STAMPED_AT_ONCE])
            except Exception:
                self._on_loop.run(_call(partial(identities.put_back_used, used)))
                raise
            used = used[STAMPED_AT_ONCE:]

    def _delete_orphans(self, deadline_s: float) -> None:
        deleted = set(self._directory.deleted)
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
        table: Registered,
        identities: Identities[Any],
        find: Callable[[Session], Sequence[int]],
        why: str,
        deadline_s: float,
    ) -> None:
        """Slices until there is nothing left, or no time."""
        count = 0
        while time.monotonic() < deadline_s:
            with self._primary.reading() as session:
                some = find(session)
            if not some:
                break
            try:
                with self._primary.transaction() as transaction:
                    cleanup.delete_registered(transaction.session, table, some)
            finally:  # after an unknown outcome PostgreSQL is asked whether they are there
                self._on_loop.run(self._drop(identities, some))
            count += len(some)
        if count:
            self._log.info("registrations deleted", table=table.__tablename__, why=why, count=count)

    async def _drop(self, identities: Identities[Any], gone: Sequence[int]) -> None:
        identities.remove(gone)
        if identities is self._directory.consumers:
            for consumer_id in gone:
                await self._cursors.remove(consumer_id)

    def _forget_deleted_topics(self) -> None:
        """A broker that is away for longer keeps what it has of them, and nobody will ask it to delete that."""
        holdings = self._members.holdings()
        if not self._directory.deleted or self._members.live().keys() - holdings.keys():
            return  # not all brokers have said yet what they hold
        held = {UUID(topic_id) for of_broker in holdings.values() for topic_id, _ in of_broker.replicas}
        with self._primary.reading() as session:
            gone = cleanup.forgettable_topics(session, self._deleted_topic_ttl, held)
        if not gone:
            return
        with self._primary.transaction() as transaction:
            cleanup.forget_topics(transaction.session, gone)
        for topic_id in map(str, gone):
            self._directory.deleted.discard(topic_id)
            self._without_orphans.discard(topic_id)


async def _call(call: Callable[[], T]) -> T:
    return call()
