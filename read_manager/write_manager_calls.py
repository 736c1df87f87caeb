"""What a read manager asks of the write manager: from Flask's threads, and from the event loop."""

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
    TopicRecord,
)
from myqueue.protocol.models import Query
from service.async_calls import AsyncCaller
from service.calls import Caller, NoAnswer

CALL_TIMEOUT_S = 5.5  # longer than the write manager waits for a leader and then for PostgreSQL
PATIENCE_S = 1.2
PAUSE_S = 0.1


class WriteManagerCalls:
    """For threads."""

    def __init__(self, caller: Caller, url: str) -> None:
        self._caller = caller
        self._url = url.rstrip("/")

    def topics(self) -> list[str]:
        names: list[str] = self._ask(internal.CATALOG_TOPICS)["topics"]
        return names

    def topic(self, name: str) -> TopicRecord:
        record: TopicRecord = self._ask(internal.CATALOG_TOPIC, topic=name)
        return record

    def cursors(self, consumer_id: int) -> ConsumerCursors:
        answer: ConsumerCursors = self._ask(internal.CURSORS, consumer_id=consumer_id)
        return answer

    def listed(self, name: str, query: Query) -> dict[str, Any]:
        """A public list, as the write manager's database has it."""
        asked = urlencode(query.model_dump(exclude_none=True))
        answer: dict[str, Any] = self._ask(internal.LISTING, query="?" + asked, name=name)
        return answer

    def heartbeat(self, request: ManagerHeartbeat) -> None:
        self._ask(internal.MANAGER_HEARTBEAT, request)

    def register_consumer(self, request: object) -> tuple[int, bool]:
        """The consumer's id, and whether it is new."""
        answer = self._ask(internal.REGISTER_CONSUMER, request)
        return answer["consumer_id"], answer["new"]

    def _ask(self, route: InternalRoute, body: object | None = None, *, query: str = "", **path_values: object) -> Any:
        """Errors that it answered with are passed on."""
        url = self._url + route.path_for(**path_values) + query
        try:
            return self._caller.json(route.method, url, body, timeout_s=CALL_TIMEOUT_S)
        except NoAnswer as error:
            raise _away(error) from error


class WriteManagerAsks:
    """For the event loop."""

    def __init__(self, caller: AsyncCaller, url: str) -> None:
        self._caller = caller
        self._url = url.rstrip("/")

    async def claim(self, request: ClaimRequest) -> ClaimAnswer:
        """Repeated when no answer came: the identity in the request makes that safe."""
        answer: ClaimAnswer = await self._ask(internal.CLAIM, request, patience_s=PATIENCE_S)
        return answer

    async def give_back(self, request: GiveBack) -> None:
        await self._ask(internal.GIVE_BACK, request, patience_s=PATIENCE_S)

    async def deliver(self, delivered: list[Delivered]) -> None:
        report: DeliveryReport = {"delivered": delivered}
        await self._ask(internal.DELIVERED, report)

    async def cursors(self, consumer_id: int) -> ConsumerCursors:
        answer: ConsumerCursors = await self._ask(internal.CURSORS, consumer_id=consumer_id)
        return answer

    async def lease(self, consumer_id: int, request: LeaseRequest) -> LeaseAnswer:
        """Repeated when no answer came: it renews what is held."""
        answer: LeaseAnswer = await self._ask(internal.LEASE, request, patience_s=PATIENCE_S, consumer_id=consumer_id)
        return answer

    async def _ask(
        self, route: InternalRoute, body: object | None = None, *, patience_s: float = 0, **path_values: object
    ) -> Any:
        """With patience, a call that got no answer is made again. Errors that it answered with are passed on."""
        url = self._url + route.path_for(**path_values)
        now_s = asyncio.get_running_loop().time
        started_s = now_s()
        while True:
            try:
                return await self._caller.json(route.method, url, body, timeout_s=CALL_TIMEOUT_S)
            except NoAnswer as error:
                if now_s() - started_s + PAUSE_S > patience_s:
                    raise _away(error) from error
            await asyncio.sleep(PAUSE_S)


def _away(error: NoAnswer) -> ManagerUnavailable:
    return ManagerUnavailable("the write manager does not answer", outcome=error.outcome)
