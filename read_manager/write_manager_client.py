"""Calls of the write manager's internal API: from threads, and from the event loop."""

import asyncio
from typing import Any
from urllib.parse import urlencode

from myqueue.protocol import internal
from myqueue.protocol.errors import ManagerUnavailable
from myqueue.protocol.internal import (
    ClaimAnswer,
    ClaimRequest,
    ConsumerCursors,
    Delivered,
    DeliveryReport,
    GiveBack,
    InternalRoute,
    LeaseAnswer,
    LeaseRequest,
    ManagerHeartbeat,
    ManagerHeartbeatAnswer,
    TopicRecord,
)
from myqueue.protocol.models import Query
from service.async_calls import AsyncCaller
from service.calls import Caller, NoAnswer

CALL_TIMEOUT_S = 5.5  # longer than the write manager waits for a leader and then for PostgreSQL
RETRY_S = 1.2
RETRY_PAUSE_S = 0.1


class WriteManagerClient:
    """For threads."""

    def __init__(self, caller: Caller, url: str) -> None:
        self._caller = caller
        self._url = url.rstrip("/")

    def topics(self) -> list[str]:
        names: list[str] = self._call(internal.CATALOG_TOPICS)["topics"]
        return names

    def topic(self, name: str) -> TopicRecord:
        record: TopicRecord = self._call(internal.CATALOG_TOPIC, topic=name)
        return record

    def cursors(self, consumer_id: int) -> ConsumerCursors:
        answer: ConsumerCursors = self._call(internal.CURSORS, consumer_id=consumer_id)
        return answer

    def listed(self, name: str, query: Query) -> dict[str, Any]:
        """A public list, from the primary."""
        asked = urlencode(query.model_dump(exclude_none=True))
        answer: dict[str, Any] = self._call(internal.LISTING, query="?" + asked, name=name)
        return answer

    def heartbeat(self, request: ManagerHeartbeat) -> ManagerHeartbeatAnswer:
        answer: ManagerHeartbeatAnswer = self._call(internal.MANAGER_HEARTBEAT, request)
        return answer

    def register_consumer(self, request: object) -> tuple[int, bool]:
        """The consumer's id, and whether it is new."""
        answer = self._call(internal.REGISTER_CONSUMER, request)
        return answer["consumer_id"], answer["new"]

    def _call(self, route: InternalRoute, body: object | None = None, *, query: str = "", **path_values: object) -> Any:
        """Errors in an answer are raised as they are."""
        url = self._url + route.path_for(**path_values) + query
        try:
            return self._caller.json(route.method, url, body, timeout_s=CALL_TIMEOUT_S)
        except NoAnswer as error:
            raise _unavailable(error) from error


class AsyncWriteManagerClient:
    """For the event loop."""

    def __init__(self, caller: AsyncCaller, url: str) -> None:
        self._caller = caller
        self._url = url.rstrip("/")

    async def claim(self, request: ClaimRequest) -> ClaimAnswer:
        """Retried when no answer came: the identity in the request makes it idempotent."""
        answer: ClaimAnswer = await self._call(internal.CLAIM, request, retry_s=RETRY_S)
        return answer

    async def give_back(self, request: GiveBack) -> None:
        await self._call(internal.GIVE_BACK, request, retry_s=RETRY_S)

    async def deliver(self, delivered: list[Delivered]) -> None:
        report: DeliveryReport = {"delivered": delivered}
        await self._call(internal.DELIVERED, report)

    async def cursors(self, consumer_id: int) -> ConsumerCursors:
        answer: ConsumerCursors = await self._call(internal.CURSORS, consumer_id=consumer_id)
        return answer

    async def lease(self, consumer_id: int, request: LeaseRequest) -> LeaseAnswer:
        """Retried when no answer came: a second request renews the same leases."""
        answer: LeaseAnswer = await self._call(internal.LEASE, request, retry_s=RETRY_S, consumer_id=consumer_id)
        return answer

    async def _call(
        self, route: InternalRoute, body: object | None = None, *, retry_s: float = 0, **path_values: object
    ) -> Any:
        """A call that got no answer is repeated for `retry_s`. Errors in an answer are raised as they are."""
        url = self._url + route.path_for(**path_values)
        now_s = asyncio.get_running_loop().time
        started_s = now_s()
        while True:
            try:
                return await self._caller.json(route.method, url, body, timeout_s=CALL_TIMEOUT_S)
            except NoAnswer as error:
                if now_s() - started_s + RETRY_PAUSE_S > retry_s:
                    raise _unavailable(error) from error
            await asyncio.sleep(RETRY_PAUSE_S)


def _unavailable(error: NoAnswer) -> ManagerUnavailable:
    return ManagerUnavailable("the write manager does not answer", outcome=error.outcome)
