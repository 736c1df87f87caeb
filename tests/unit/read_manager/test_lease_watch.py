"""Polls that wait for a change of leases, and the one request that wakes them."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from myqueue.protocol.errors import ManagerUnavailable
from myqueue.protocol.internal import LeaseAnswer, LeaseChangesAnswer, LeaseRequest
from myqueue.protocol.models import Poll
from read_manager.lease_watch import LeaseWatch
from read_manager.long_poll import ClientConnection, LongPolls
from read_manager.memory_budget import MemoryBudget
from read_manager.metadata_cache import MetadataCache
from read_manager.poll import PollHandler
from read_manager.replica_fetch import ReplicaFetcher
from read_manager.write_manager_client import AsyncWriteManagerClient
from service.async_calls import AsyncCaller

LOG = structlog.wrap_logger(logging.getLogger("test"))
LEASE_MS = 60_000  # a poll would renew after 20 s
SOON_S = 5


class NoTopics(MetadataCache):
    def __init__(self) -> None:
        """Without a catalog."""


class NoReplicas(ReplicaFetcher):
    def __init__(self) -> None:
        """Without brokers."""


class WriteManager(AsyncWriteManagerClient):
    """One consumer; its members' partitions are set by the test, which publishes changes itself."""

    def __init__(self) -> None:
        self.held: dict[str, list[int]] = {}
        self.asked: list[LeaseRequest] = []
        self.changes: asyncio.Queue[LeaseChangesAnswer | ManagerUnavailable] = asyncio.Queue()

    async def lease(self, consumer_id: int, request: LeaseRequest) -> LeaseAnswer:
        self.asked.append(request)
        return {
            "status": "success",
            "consumer_id": consumer_id,
            "topic": "orders",
            "topic_id": "9f1d3c52-8d0a-4f6e-9a51-1b7f3f3f9c11",
            "lease_ms": LEASE_MS,
            "leases": [
                {"partition_id": p, "generation": 1, "cursor": 0, "revoking": False}
                for p in self.held.get(request["member"], [])
            ],
        }

    async def lease_changes(self, after: int, wait_s: float) -> LeaseChangesAnswer:
        answer = await self.changes.get()
        if isinstance(answer, ManagerUnavailable):
            raise answer
        return answer

    def publish(self, *members: str, complete: bool = True) -> None:
        changed: Any = [{"consumer_id": 7, "member": member} for member in members]
        self.changes.put_nowait({"status": "success", "last": 1, "complete": complete, "changed": changed})


class Polls:
    def __init__(self) -> None:
        self.manager = WriteManager()
        self.watch = LeaseWatch(self.manager, LOG)
        topics = NoTopics()
        self.long_polls = LongPolls(AsyncCaller("secret"), topics, LOG, max_waiters=10)
        self._handler = PollHandler(
            self.manager, NoReplicas(), topics, self.long_polls, MemoryBudget(1 << 30), self.watch
        )
        self.closed = asyncio.Event()

    async def poll(self, member: str, assignment: str | None = None, wait_ms: int = 30_000) -> dict[str, Any]:
        async def disconnected() -> None:
            await self.closed.wait()

        with ClientConnection(disconnected) as client:
            request = Poll(member=member, max_messages=0, wait_ms=wait_ms, assignment=assignment)
            answer: dict[str, Any] = json.loads(await self._handler.poll(7, request, client))
            return answer

    async def waiting(self, member: str, assignment: str) -> "asyncio.Task[dict[str, Any]]":
        asked = len(self.manager.asked)
        task = asyncio.create_task(self.poll(member, assignment))
        while len(self.manager.asked) == asked:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        return task


def run(scenario: Callable[[Polls], Awaitable[None]]) -> None:
    async def whole() -> None:
        polls = Polls()
        try:
            await asyncio.wait_for(scenario(polls), 20)
        finally:
            polls.watch.stop()
            polls.long_polls.stop()

    asyncio.run(whole())


def partitions(answer: dict[str, Any]) -> list[int]:
    return [lease["partition_id"] for lease in answer["leases"]]


def test_a_poll_without_assignment_does_not_wait() -> None:
    async def scenario(polls: Polls) -> None:
        answer = await polls.poll("a")
        assert (partitions(answer), len(polls.manager.asked)) == ([], 1)

    run(scenario)


def test_a_poll_that_knows_other_leases_is_answered_at_once() -> None:
    async def scenario(polls: Polls) -> None:
        polls.manager.held["a"] = [1]
        known = (await polls.poll("a"))["assignment"]
        polls.manager.held["a"] = [1, 2]
        assert partitions(await polls.poll("a", known)) == [1, 2]

    run(scenario)


def test_a_change_wakes_its_member_and_nobody_else() -> None:
    async def scenario(polls: Polls) -> None:
        known = (await polls.poll("a"))["assignment"]
        a, b = await polls.waiting("a", known), await polls.waiting("b", known)
        asked = len(polls.manager.asked)
        polls.manager.held["a"] = [3]
        polls.manager.publish("a", "of another read manager")
        assert partitions(await asyncio.wait_for(a, SOON_S)) == [3]
        assert not b.done()
        assert [request["member"] for request in polls.manager.asked[asked:]] == ["a"]
        assert polls.manager.asked[-1]["renewal"], "one that has left meanwhile must not join again"
        b.cancel()

    run(scenario)


def test_a_change_that_comes_before_the_answer_of_the_leases_is_not_missed() -> None:
    async def scenario(polls: Polls) -> None:
        known = (await polls.poll("a"))["assignment"]
        lease = polls.manager.lease

        async def changing_meanwhile(consumer_id: int, request: LeaseRequest) -> LeaseAnswer:
            answer = await lease(consumer_id, request)
            if not request.get("renewal"):
                polls.manager.held["a"] = [3]
                polls.manager.publish("a")
                for _ in range(10):
                    await asyncio.sleep(0)
            return answer

        polls.manager.lease = changing_meanwhile  # type: ignore[method-assign]
        assert partitions(await asyncio.wait_for(polls.poll("a", known), SOON_S)) == [3]

    run(scenario)


def test_whoever_missed_changes_asks_for_all_and_waits_on() -> None:
    async def scenario(polls: Polls) -> None:
        known = (await polls.poll("a"))["assignment"]
        waiting = await polls.waiting("a", known)
        asked = len(polls.manager.asked)
        polls.manager.changes.put_nowait(ManagerUnavailable())
        polls.manager.publish(complete=False)
        while len(polls.manager.asked) == asked:
            await asyncio.sleep(0.01)
        assert not waiting.done(), "its leases are the same"
        polls.manager.held["a"] = [0]
        polls.manager.publish("a")
        assert partitions(await asyncio.wait_for(waiting, SOON_S)) == [0]

    run(scenario)


def test_a_wait_ends_at_its_time_at_the_stop_and_with_its_client() -> None:
    async def scenario(polls: Polls) -> None:
        known = (await polls.poll("a"))["assignment"]
        assert partitions(await polls.poll("a", known, wait_ms=50)) == []
        left = await polls.waiting("a", known)
        asked = len(polls.manager.asked)
        polls.closed.set()
        await asyncio.wait_for(left, SOON_S)
        assert len(polls.manager.asked) == asked, "leases of a member that is gone are not renewed"
        polls.closed.clear()
        stopped = await polls.waiting("a", known)
        polls.long_polls.stop()
        await asyncio.wait_for(stopped, SOON_S)

    run(scenario)


def test_a_thousand_waiting_members_are_one_request() -> None:
    async def scenario(polls: Polls) -> None:
        known = (await polls.poll("0"))["assignment"]
        waiting = [await polls.waiting(str(number), known) for number in range(1000)]
        asked = len(polls.manager.asked)
        for member in ("17", "600"):
            polls.manager.held[member] = [1]
        polls.manager.publish("17", "600")
        done, pending = await asyncio.wait(waiting, timeout=0.5)
        assert (len(done), len(pending)) == (2, 998)
        assert len(polls.manager.asked) == asked + 2
        for task in pending:
            task.cancel()

    run(scenario)
