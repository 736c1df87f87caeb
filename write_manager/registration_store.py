"""Group commit of registrations: those that arrive while one transaction is stored share the next one."""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sqlalchemy.exc import IntegrityError

from db import registrations
from db.primary import Primary
from db.registrations import ConsumerIdentity, Missing, ProducerIdentity, RegistrationResult, Wanted, WantedConsumer
from myqueue.protocol.errors import ConsumerNotFound, MetadataUnavailable, MyQueueError, TopicNotFound
from myqueue.protocol.token import Token
from service.logs import Log
from write_manager.metadata_cache import MetadataCache

STORE_TIMEOUT_S = 4.0
ROWS_PER_GROUP = 5000  # of cursors and registrations: a group must end well before the statement timeout
ATTEMPTS = 3

Result = tuple[RegistrationResult | Missing, Token | None]


@dataclass(slots=True, eq=False)
class _PendingRegistration:
    wanted: Wanted
    done: "asyncio.Future[Result | MyQueueError]"

    @property
    def rows(self) -> int:
        cursors = self.wanted.cursors if isinstance(self.wanted, WantedConsumer) else None
        return 1 + len(cursors or ())


class RegistrationStore:
    """Runs on the event loop. The only writer of producers and consumers, so names are decided one group at a time."""

    def __init__(self, primary: Primary, cache: MetadataCache, log: Log, loop: asyncio.AbstractEventLoop) -> None:
        self._primary = primary
        self._cache = cache
        self._log = log
        self._loop = loop
        self._pending: deque[_PendingRegistration] = deque()
        self._storing: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="registrations")

    def start(self) -> None:
        """Nothing to do before the first request."""

    def stop(self) -> None:
        self._thread.shutdown(wait=False)

    async def store(self, wanted: Wanted) -> tuple[RegistrationResult, Token | None]:
        """Raises TopicNotFound, and ConsumerNotFound for a consumer without cursors that does not exist."""
        pending = _PendingRegistration(wanted, self._loop.create_future())
        self._pending.append(pending)
        if self._storing is None or self._storing.done():
            self._storing = asyncio.create_task(self._store_all())
        await asyncio.wait([pending.done], timeout=STORE_TIMEOUT_S)
        if not pending.done.done():
            if pending not in self._pending:
                raise MetadataUnavailable(outcome="unknown")
            self._pending.remove(pending)
            raise MetadataUnavailable("other registrations are taking too long", outcome="not_written")
        result = pending.done.result()
        if isinstance(result, MyQueueError):
            raise type(result)(result.message, outcome=result.outcome)  # each waiter its own
        stored, token = result
        if stored is Missing.TOPIC:
            raise TopicNotFound()
        if stored is Missing.CONSUMER:
            raise ConsumerNotFound()
        assert isinstance(stored, RegistrationResult)
        return stored, token

    async def _store_all(self) -> None:
        while self._pending:
            await self._store_group(self._next_group())

    def _next_group(self) -> list[_PendingRegistration]:
        group = [self._pending.popleft()]
        rows = group[0].rows
        while self._pending and rows + self._pending[0].rows <= ROWS_PER_GROUP:
            rows += self._pending[0].rows
            group.append(self._pending.popleft())
        return group

    async def _store_group(self, group: Sequence[_PendingRegistration]) -> None:
        try:
            stored, token = await self._loop.run_in_executor(self._thread, self._save, [each.wanted for each in group])
        except MyQueueError as error:
            self._log.warning("registrations not stored", count=len(group), why=error.message, outcome=error.outcome)
            for each in group:
                each.done.set_result(error)
        except Exception:  # noqa: BLE001 every waiter gets an answer
            if len(group) > 1:  # a bad one must not fail the others
                for each in group:
                    await self._store_group([each])
                return
            self._log.exception("registration not stored", wanted=group[0].wanted)
            group[0].done.set_result(MetadataUnavailable(outcome="unknown"))
        else:
            for each, found in zip(group, stored, strict=True):
                self._remember(each.wanted, found)
                each.done.set_result((found, token))

    def _remember(self, wanted: Wanted, found: RegistrationResult | Missing) -> None:
        if isinstance(found, Missing):
            return
        if isinstance(wanted, WantedConsumer):
            consumer = ConsumerIdentity(found.id, wanted.topic_id, wanted.topic, wanted.name, found.partition_id)
            self._cache.consumers.add(found.id, consumer)
        else:
            self._cache.producers.add(found.id, ProducerIdentity(found.id, wanted.topic_id, wanted.name))

    def _save(self, wanted: Sequence[Wanted]) -> tuple[list[RegistrationResult | Missing], Token | None]:
        """Also when all exist already, the commit waits for a standby, which then has the rows, too."""
        for attempt in range(ATTEMPTS):
            try:
                with self._primary.transaction() as transaction:
                    stored = registrations.register(transaction.session, wanted)
            except IntegrityError as error:
                # A transaction of unknown outcome has stored a name since the query; the next attempt finds it.
                if attempt + 1 == ATTEMPTS:
                    message = "the catalog is not known for sure right now"
                    raise MetadataUnavailable(message, outcome="not_written") from error
            else:
                return stored, transaction.token
        raise AssertionError("unreachable")
