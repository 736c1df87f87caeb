"""Registrations stored in groups: what comes in while one transaction is stored goes with the next."""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sqlalchemy.exc import IntegrityError

from db import registrations
from db.primary import Primary
from db.registrations import ConsumerIdentity, Missing, ProducerIdentity, Stored, Wanted, WantedConsumer
from myqueue.protocol.errors import ConsumerNotFound, MetadataUnavailable, MyQueueError, TopicNotFound
from myqueue.protocol.token import Token
from service.logs import Log
from write_manager.directory import Directory

STORE_TIMEOUT_S = 4.0
ROWS_AT_ONCE = 5000  # of cursors and registrations: a group must end well before a statement's time is over
LOOKS = 3

Answer = tuple[Stored | Missing, Token | None]


@dataclass(slots=True, eq=False)
class _Waiting:
    wanted: Wanted
    done: "asyncio.Future[Answer | MyQueueError]"

    @property
    def rows(self) -> int:
        cursors = self.wanted.cursors if isinstance(self.wanted, WantedConsumer) else None
        return 1 + len(cursors or ())


class RegistrationGroups:
    """On the event loop. The only writer of producers and consumers, so names are decided one group at a time."""

    def __init__(self, primary: Primary, directory: Directory, log: Log, loop: asyncio.AbstractEventLoop) -> None:
        self._primary = primary
        self._directory = directory
        self._log = log
        self._loop = loop
        self._waiting: deque[_Waiting] = deque()
        self._storing: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="registrations")

    def start(self) -> None:
        """Everything begins with the first request."""

    def stop(self) -> None:
        self._thread.shutdown(wait=False)

    async def store(self, wanted: Wanted) -> tuple[Stored, Token | None]:
        """TopicNotFound when the topic is gone, ConsumerNotFound when a consumer without cursors is not there."""
        waiting = _Waiting(wanted, self._loop.create_future())
        self._waiting.append(waiting)
        if self._storing is None or self._storing.done():
            self._storing = asyncio.create_task(self._store_all())
        await asyncio.wait([waiting.done], timeout=STORE_TIMEOUT_S)
        if not waiting.done.done():
            if waiting not in self._waiting:
                raise MetadataUnavailable(outcome="unknown")
            self._waiting.remove(waiting)
            raise MetadataUnavailable("other registrations are taking too long", outcome="not_written")
        result = waiting.done.result()
        if isinstance(result, MyQueueError):
            raise type(result)(result.message, outcome=result.outcome)  # each waiter its own
        stored, token = result
        if stored is Missing.TOPIC:
            raise TopicNotFound()
        if stored is Missing.CONSUMER:
            raise ConsumerNotFound()
        assert isinstance(stored, Stored)
        return stored, token

    async def _store_all(self) -> None:
        while self._waiting:
            await self._store_group(self._next_group())

    def _next_group(self) -> list[_Waiting]:
        group = [self._waiting.popleft()]
        rows = group[0].rows
        while self._waiting and rows + self._waiting[0].rows <= ROWS_AT_ONCE:
            rows += self._waiting[0].rows
            group.append(self._waiting.popleft())
        return group

    async def _store_group(self, group: Sequence[_Waiting]) -> None:
        try:
            stored, token = await self._loop.run_in_executor(self._thread, self._save, [each.wanted for each in group])
        except MyQueueError as error:
            self._log.warning("registrations not stored", count=len(group), why=error.message, outcome=error.outcome)
            for each in group:
                each.done.set_result(error)
        except Exception:  # noqa: BLE001 every waiter must hear of it, whatever it was
            if len(group) > 1:  # what is wrong with one of them must not be in the way of the others
                for each in group:
                    await self._store_group([each])
                return
            self._log.exception("registration not stored", wanted=group[0].wanted)
            group[0].done.set_result(MetadataUnavailable(outcome="unknown"))
        else:
            for each, found in zip(group, stored, strict=True):
                self._remember(each.wanted, found)
                each.done.set_result((found, token))

    def _remember(self, wanted: Wanted, found: Stored | Missing) -> None:
        if isinstance(found, Missing):
            return
        if isinstance(wanted, WantedConsumer):
            consumer = ConsumerIdentity(found.id, wanted.topic_id, wanted.topic, wanted.name, found.partition_id)
            self._directory.consumers.add(found.id, consumer)
        else:
            self._directory.producers.add(found.id, ProducerIdentity(found.id, wanted.topic_id, wanted.name))

    def _save(self, wanted: Sequence[Wanted]) -> tuple[list[Stored | Missing], Token | None]:
        """Also when all were there before, the commit waits for a standby, which then has what stored them, too."""
        for look in range(LOOKS):
            try:
                with self._primary.transaction() as transaction:
                    stored = registrations.register(transaction.session, wanted)
            except IntegrityError as error:
                # A transaction whose outcome was unknown has stored a name since the look; the next look finds it.
                if look + 1 == LOOKS:
                    message = "the catalog is not known for sure right now"
                    raise MetadataUnavailable(message, outcome="not_written") from error
            else:
                return stored, transaction.token
        raise AssertionError("unreachable")
