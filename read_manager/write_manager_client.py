"""Calls of the write manager's internal API: from threads, and from the event loop."""

import asyncio
from typing import Any
from urllib.parse import urlencode

from myqueue.protocol import http_headers, internal
from myqueue.protocol.errors import ManagerUnavailable, Outcome
from myqueue.protocol.internal import (
    ClaimAnswer,
    ClaimRequest,
    ConsumerCursors,
    Delivered,
    DeliveryReport,
    GiveBack,
    InternalRoute,
    LeaseAnswer,
    LeaseChangesAnswer,
    LeaseChangesRequest,
    LeaseRequest,
    ManagerHeartbeat,
    ManagerHeartbeatAnswer,
    ScrapeTarget,
    TopicRecord,
)
from myqueue.protocol.models import Query
from myqueue.protocol.overview import ClusterState
from myqueue.protocol.token import Token
from service.active_manager import AsyncManagerCaller, ManagerCaller
from service.calls import NoAnswer

CALL_TIMEOUT_S = 5.5  # longer than the write manager waits for a leader and then for PostgreSQL
HEARTBEAT_TIMEOUT_S = 2.0  # a heartbeat waits for nothing: without an answer, the write manager hangs
CHANGES_SPARE_S = 1.5  # beyond the time that a request may wait for lease changes
RETRY_S = 1.2  # for a call that was sent to none; else for CALL_TIMEOUT_S more
RETRY_PAUSE_S = 0.1


class WriteManagerClient:
    """For threads."""

    def __init__(self, managers: ManagerCaller) -> None:
        self._managers = managers

    def topics(self, token: Token | None) -> list[str]:
        names: list[str] = self._call(internal.CATALOG_TOPICS, token=token)["topics"]
        return names

    def topic(self, name: str, token: Token | None) -> TopicRecord:
        record: TopicRecord = self._call(internal.CATALOG_TOPIC, token=token, topic=name)
        return record

    def cursors(self, consumer_id: int) -> ConsumerCursors:
        answer: ConsumerCursors = self._call(internal.CURSORS, consumer_id=consumer_id)
        return answer

    def listed(self, name: str, query: Query, token: Token | None) -> dict[str, Any]:
        """A public list, from the primary."""
        asked = urlencode(query.model_dump(exclude_none=True, by_alias=True))
        answer: dict[str, Any] = self._call(internal.LISTING, query="?" + asked, token=token, name=name)
        return answer

    def heartbeat(self, request: ManagerHeartbeat) -> ManagerHeartbeatAnswer:
        answer: ManagerHeartbeatAnswer = self._call(internal.MANAGER_HEARTBEAT, request, timeout_s=HEARTBEAT_TIMEOUT_S)
        return answer

    def register_consumer(self, request: object) -> tuple[int, bool]:
        """The consumer's id, and whether it is new."""
        answer = self._call(internal.REGISTER_CONSUMER, request)
        return answer["consumer_id"], answer["new"]

    def _call(
        self,
        route: InternalRoute,
        body: object | None = None,
        *,
        query: str = "",
        token: Token | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        **path_values: object,
    ) -> Any:
        """Errors in an answer are raised as they are.

        With a `token` the write manager answers only while it is sure that no other one has stored something newer.
        """
        path = route.path_for(**path_values) + query
        headers = None if token is None else {http_headers.TOKEN: str(token)}
        try:
            return self._managers.json(route.method, path, body, timeout_s=timeout_s, extra_headers=headers)
        except NoAnswer as error:
            raise _unavailable(error.outcome) from error


class AsyncWriteManagerClient:
    """For the event loop."""

    def __init__(
        self, managers: AsyncManagerCaller, *, call_timeout_s: float = CALL_TIMEOUT_S, retry_s: float = RETRY_S
    ) -> None:
        self._managers = managers
        self._call_timeout_s = call_timeout_s
        self._retry_s = retry_s

    async def claim(self, request: ClaimRequest) -> ClaimAnswer:
        """Retried when no answer came: the identity in the request makes it idempotent."""
        answer: ClaimAnswer = await self._call(internal.CLAIM, request, retries=True)
        return answer

    async def give_back(self, request: GiveBack) -> None:
        await self._call(internal.GIVE_BACK, request, retries=True)

    async def deliver(self, delivered: list[Delivered]) -> None:
        report: DeliveryReport = {"delivered": delivered}
        await self._call(internal.DELIVERED, report)

    async def cursors(self, consumer_id: int) -> ConsumerCursors:
        answer: ConsumerCursors = await self._call(internal.CURSORS, consumer_id=consumer_id)
        return answer

    async def lags(self, query: Query) -> dict[str, Any]:
        answer: dict[str, Any] = await self._call(internal.LAGS, query="?" + urlencode(query.model_dump()))
        return answer

    async def scrape_targets(self, timeout_s: float) -> list[ScrapeTarget]:
        targets: list[ScrapeTarget] = (await self._call(internal.SCRAPE_TARGETS, timeout_s=timeout_s))["targets"]
        return targets

    async def cluster_state(self, timeout_s: float) -> ClusterState:
        state: ClusterState = await self._call(internal.CLUSTER_STATE, timeout_s=timeout_s)
        return state

    async def lease(self, consumer_id: int, request: LeaseRequest) -> LeaseAnswer:
        """Retried when no answer came: a second request renews the same leases."""
        answer: LeaseAnswer = await self._call(internal.LEASE, request, retries=True, consumer_id=consumer_id)
        return answer

    async def lease_changes(self, after: int, wait_s: float) -> LeaseChangesAnswer:
        """Waits up to `wait_s` for changes after that number."""
        request: LeaseChangesRequest = {"after": after, "wait_ms": round(wait_s * 1000)}
        answer: LeaseChangesAnswer = await self._call(
            internal.LEASE_CHANGES, request, timeout_s=wait_s + CHANGES_SPARE_S
        )
        return answer

    async def _call(
        self,
        route: InternalRoute,
        body: object | None = None,
        *,
        timeout_s: float | None = None,
        retries: bool = False,
        query: str = "",
        **path_values: object,
    ) -> Any:
        """With `retries` it is repeated for `retry_s` while no write manager takes it. Once it was sent to one that did
        not answer, because it died or hangs, it is repeated for both times together, at the one that takes over.
        Errors in an answer are raised as they are."""
        path = route.path_for(**path_values) + query
        now_s = asyncio.get_running_loop().time
        started_s = now_s()
        timeout_s = self._call_timeout_s if timeout_s is None else timeout_s
        deadline_s = started_s + timeout_s + self._retry_s
        outcome: Outcome | None = "not_written"
        while True:
            try:
                return await self._managers.json(
                    route.method, path, body, timeout_s=min(timeout_s, deadline_s - now_s())
                )
            except NoAnswer as error:
                if error.outcome != "not_written":
                    outcome = error.outcome
                repeat_until_s = started_s + self._retry_s if outcome == "not_written" else deadline_s
                if not retries or now_s() + RETRY_PAUSE_S > repeat_until_s:
                    raise _unavailable(outcome) from error
            await asyncio.sleep(RETRY_PAUSE_S)


def _unavailable(outcome: Outcome | None) -> ManagerUnavailable:
    return ManagerUnavailable("the write manager does not answer", outcome=outcome)
