"""Deliveries are reported in groups, and again when a report did not get through; nothing is delivered too late."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest
import structlog

from myqueue.protocol import batch as wire
from myqueue.protocol.batch import Message
from myqueue.protocol.errors import ManagerUnavailable
from myqueue.protocol.internal import ClaimAnswer, ClaimRequest, Delivered, GiveBack
from myqueue.protocol.models import Consume
from read_manager.consume import ClaimedMessage, ConsumeHandler
from read_manager.delivery_reports import REPORT_NOW, DeliveryReporter
from read_manager.long_poll import ClientConnection, LongPolls
from read_manager.metadata_cache import MetadataCache
from read_manager.replica_fetch import ReplicaFetcher
from read_manager.write_manager_client import AsyncWriteManagerClient
from service.async_calls import AsyncCaller

TOPIC_ID = "9f1d3c52-8d0a-4f6e-9a51-1b7f3f3f9c11"


class Claims(AsyncWriteManagerClient):
    """Every claim gets the same message."""

    def __init__(self, *, lifetime_s: float = 10.0, failures: int = 0) -> None:
        self.lifetime_s = lifetime_s
        self.failures = failures
        self.reports: list[list[Delivered]] = []
        self.given_back: list[GiveBack] = []

    async def claim(self, request: ClaimRequest) -> ClaimAnswer:
        return {
            "status": "success",
            "claim": {
                "topic_id": TOPIC_ID,
                "partition_id": 0,
                "offset": 7,
                "attempt": 1,
                "lifetime_ms": round(self.lifetime_s * 1000),
                "endpoints": [],
            },
            "token": None,
        }

    async def give_back(self, request: GiveBack) -> None:
        self.given_back.append(request)

    async def deliver(self, delivered: list[Delivered]) -> None:
        if self.failures:
            self.failures -= 1
            raise ManagerUnavailable()
        self.reports.append(delivered)


class SlowBroker(ReplicaFetcher):
    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    async def message(
        self, topic_id: str, partition_id: int, offset: int, endpoints: Sequence[str], limit: int = 1
    ) -> bytes:
        await asyncio.sleep(self._delay_s)
        body = wire.encode_body([Message(b"late")])
        header = wire.placed(wire.header_for(UUID(topic_id), partition_id, body, 1), offset, 0)
        return header.pack() + body


class NoTopics(MetadataCache):
    def __init__(self) -> None:
        """No request waits here, so no topic is read."""


async def consumed(claims: Claims, *, delay_s: float) -> ClaimedMessage | None:
    topics, log = NoTopics(), structlog.get_logger()
    polls = LongPolls(AsyncCaller("secret"), topics, log, max_waiters=1)
    deliveries = DeliveryReporter(claims, asyncio.get_running_loop(), log)
    handler = ConsumeHandler(claims, SlowBroker(delay_s), topics, polls, deliveries, log)

    async def stays() -> None:
        await asyncio.Event().wait()

    with ClientConnection(stays) as client:
        return await handler.next_message(Consume(topic="t", consumer_id=0), "request 1", None, client)


def delivered(identity: str, consumer_id: int = 0) -> Delivered:
    return {"consumer_id": consumer_id, "identity": identity, "partition_id": 0, "offset": 7}


def test_a_message_is_not_delivered_after_its_claim_has_expired() -> None:
    claims = Claims(lifetime_s=0.05)
    with pytest.raises(ManagerUnavailable) as late:
        asyncio.run(consumed(claims, delay_s=0.2))
    assert late.value.retriable
    found = asyncio.run(consumed(Claims(), delay_s=0))
    assert found is not None
    assert found.message.offset == 7


def test_deliveries_are_reported_in_groups() -> None:
    async def main() -> list[list[Delivered]]:
        claims = Claims()
        deliveries = DeliveryReporter(claims, asyncio.get_running_loop(), structlog.get_logger())
        for number in range(3 * REPORT_NOW):
            deliveries.add(delivered(f"request {number}", number % 2), 10.0)
        await asyncio.to_thread(deliveries.stop)
        return claims.reports

    reports = asyncio.run(main())
    assert [each["identity"] for report in reports for each in report] == [
        f"request {number}" for number in range(3 * REPORT_NOW)
    ]
    assert len(reports) <= 3


def test_a_few_deliveries_are_reported_soon() -> None:
    async def main() -> None:
        claims = Claims()
        deliveries = DeliveryReporter(claims, asyncio.get_running_loop(), structlog.get_logger())
        deliveries.add(delivered("request 1"), 10.0)
        deliveries.add(delivered("request 2"), 10.0)
        assert claims.reports == []
        async with asyncio.timeout(5):
            while not claims.reports:
                await asyncio.sleep(0.01)
        assert len(claims.reports[0]) == 2

    asyncio.run(main())


def test_a_report_that_did_not_get_through_is_repeated_while_it_can_help() -> None:
    async def main() -> None:
        claims = Claims(failures=2)
        deliveries = DeliveryReporter(claims, asyncio.get_running_loop(), structlog.get_logger())
        deliveries.add(delivered("request useless"), 0.1)
        deliveries.add(delivered("request useful"), 10.0)
        async with asyncio.timeout(10):
            while not claims.reports:
                await asyncio.sleep(0.01)
        assert claims.reports == [[delivered("request useful")]]

    asyncio.run(main())
