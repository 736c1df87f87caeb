"""What a read manager asks of the write manager: from Flask's threads, and from the event loop."""

import asyncio
from typing import Any
from urllib.parse import urlencode

from myqueue.protocol import internal, routes
from myqueue.protocol.errors import ManagerUnavailable
from myqueue.protocol.internal import (
    ClaimAnswer,
    ClaimRequest,
    ConsumerCursors,
    Delivered,
    DeliveryReport,
    GiveBack,
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
        names: list[str] = self._ask("GET", internal.CATALOG_TOPICS)["topics"]
        return names

    def topic(self, name: str) -> TopicRecord:
        record: TopicRecord = self._ask("GET", internal.CATALOG_TOPIC.format(topic=name))
        return record

    def cursors(self, consumer_id: int) -> ConsumerCursors:
        answer: ConsumerCursors = self._ask("GET", internal.CURSORS.format(consumer_id=consumer_id))
        return answer

    def listed(self, name: str, query: Query) -> dict[str, Any]:
        """A public list, as the write manager's database has it."""
        asked = urlencode(query.model_dump(exclude_none=True))
        answer: dict[str, Any] = self._ask("GET", f"{internal.LISTING.format(name=name)}?{asked}")
        return answer

    def heartbeat(self, request: ManagerHeartbeat) -> None:
        self._ask("POST", internal.MANAGER_HEARTBEAT, request)

    def register_consumer(self, request: object) -> tuple[int, bool]:
        """The consumer's id, and whether it is new."""
        answer = self._ask("POST", f"/internal{routes.REGISTER_CONSUMER.path}", request)
        return answer["consumer_id"], answer["new"]

    def _ask(self, method: str, path: str, body: object | None = None) -> Any:
        """Errors that it answered with are passed on."""
        try:
            return self._caller.json(method, self._url + path, body, timeout_s=CALL_TIMEOUT_S)
        except NoAnswer as error:
            raise _away(error) from error


class WriteManagerAsks:
    """For the event loop."""

    def __init__(self, caller: AsyncCaller, url: str) -> None:
        self._caller = caller
        self._url = url.rstrip("/")

    async def claim(self, request: ClaimRequest) -> ClaimAnswer:
        """Repeated when no answer came: the identity in the request makes that safe."""
        answer: ClaimAnswer = await self._ask("POST", internal.CLAIM, request, patience_s=PATIENCE_S)
        return answer

    async def give_back(self, request: GiveBack) -> None:
        await self._ask("POST", internal.GIVE_BACK, request, patience_s=PATIENCE_S)

    async def deliver(self, delivered: list[Delivered]) -> None:
        report: DeliveryReport = {"delivered": delivered}
        await self._ask("POST", internal.DELIVERED, report)

    async def cursors(self, consumer_id: int) -> ConsumerCursors:
        answer: ConsumerCursors = await self._ask("GET", internal.CURSORS.format(consumer_id=consumer_id))
        return answer

    async def lease(self, consumer_id: int, request: LeaseRequest) -> LeaseAnswer:
        """Repeated when no answer came: it renews what is held."""
        path = internal.LEASE.format(consumer_id=consumer_id)
        answer: LeaseAnswer = await self._ask("POST", path, request, patience_s=PATIENCE_S)
        return answer

    async def _ask(self, method: str, path: str, body: object | None = None, *, patience_s: float = 0) -> Any:
        """With patience, a call that got no answer is made again. Errors that it answered with are passed on."""
        now_s = asyncio.get_running_loop().time
        started_s = now_s()
        while True:
            try:
                return await self._caller.json(method, self._url + path, body, timeout_s=CALL_TIMEOUT_S)
            except NoAnswer as error:
                if now_s() - started_s + PAUSE_S > patience_s:
                    raise _away(error) from error
            await asyncio.sleep(PAUSE_S)


def _away(error: NoAnswer) -> ManagerUnavailable:
    return ManagerUnavailable("the write manager does not answer", outcome=error.outcome)
