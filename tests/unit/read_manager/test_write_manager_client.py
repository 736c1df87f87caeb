"""Calls of a read manager through a takeover of the write manager."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from myqueue.protocol.errors import ManagerUnavailable, StandbyManager
from myqueue.protocol.internal import ClaimRequest
from myqueue.protocol.models import Nothing
from myqueue.protocol.token import Token
from read_manager.write_manager_client import AsyncWriteManagerClient, WriteManagerClient
from service.active_manager import AsyncManagerCaller, ManagerCaller, WriteManagerFollower
from service.async_calls import AsyncCaller
from service.calls import Caller
from tests.unit.client.scripted_server import Reply, Reset, ScriptedServer, Seen, Step
from tests.waiting import until

CLAIM: ClaimRequest = {"topic": "orders", "consumer_id": 1, "partition_id": None, "identity": "request-1"}
STANDBY = Reply(503, StandbyManager().to_body(None))


@dataclass(frozen=True)
class Waiting:
    """Active, with this epoch; what it is asked for takes long."""

    epoch: int


class WriteManagerPair:
    """Two at their addresses: each is active (with an epoch), the standby, dies with a request, or hangs."""

    def __init__(self) -> None:
        self.servers = [ScriptedServer(), ScriptedServer()]
        self.states: list[int | str | Waiting] = [1, "standby"]
        for number, server in enumerate(self.servers):
            server.answer = self._answer_of(number)
        self.urls = [server.url for server in self.servers]

    def _answer_of(self, number: int) -> Callable[[Seen], Step]:
        def answer(seen: Seen) -> Step:
            state = self.states[number]
            if state == "dies":
                self.states[number] = "standby"  # restarted at once
                return Reset()
            if state == "hangs":
                return Reply(after_s=8.0)
            if isinstance(state, Waiting) and seen.path != "/internal/status":
                return Reply(after_s=8.0)
            epoch = state.epoch if isinstance(state, Waiting) else state if isinstance(state, int) else None
            if seen.path == "/internal/status":
                return Reply(200, {"active": epoch is not None, "epoch": epoch})
            if epoch is None:
                return STANDBY
            return Reply(200, {"status": "success", "claim": None, "by": number}, {"X-Myqueue-Epoch": str(epoch)})

        return answer

    def asked(self, number: int) -> list[Seen]:
        return [seen for seen in self.servers[number].seen if seen.path != "/internal/status"]

    def close(self) -> None:
        for server in self.servers:
            server.close()


@pytest.fixture
def pair() -> Iterator[WriteManagerPair]:
    with closing(WriteManagerPair()) as made:
        yield made


def run(pair: WriteManagerPair, work: Callable[[AsyncWriteManagerClient], Awaitable[object]]) -> None:
    async def go() -> None:
        with closing(AsyncManagerCaller(AsyncCaller("secret"), WriteManagerFollower(pair.urls))) as managers:
            await work(AsyncWriteManagerClient(managers, call_timeout_s=0.5, retry_s=2.0))
            await asyncio.sleep(0)

    asyncio.run(go())


@pytest.mark.parametrize("fault", ["dies", "hangs"])
def test_an_unanswered_claim_is_repeated_at_the_one_that_takes_over(pair: WriteManagerPair, fault: str) -> None:
    async def claim(client: AsyncWriteManagerClient) -> None:
        await client.claim(CLAIM)
        pair.states[0] = fault
        asyncio.get_running_loop().call_later(0.8, pair.states.__setitem__, 1, 2)
        answer = await client.claim(CLAIM)
        assert answer["by"] == 1  # type: ignore[typeddict-item]

    run(pair, claim)
    assert {seen.body["identity"] for seen in pair.asked(0) + pair.asked(1)} == {"request-1"}


def test_while_none_is_active_a_call_fails_soon_and_says_what_is_known(pair: WriteManagerPair) -> None:
    pair.states = ["standby", "standby"]

    async def deliver(client: AsyncWriteManagerClient) -> None:
        for call in (lambda: client.claim(CLAIM), lambda: client.deliver([])):
            with pytest.raises(ManagerUnavailable) as failed:
                await call()
            assert failed.value.outcome == "not_written"

    began_s = time.monotonic()
    run(pair, deliver)
    assert time.monotonic() - began_s < 5


def test_deliveries_leases_and_lease_changes_go_to_the_new_one(pair: WriteManagerPair) -> None:
    async def calls(client: AsyncWriteManagerClient) -> None:
        pair.states = ["standby", 2]
        await client.deliver([])
        await client.give_back({"consumer_id": 1, "identity": "x", "attempt": 1, "beginning_offset": None})
        await client.lease(1, {"member": "m", "instance": "i"})  # type: ignore[typeddict-item, typeddict-unknown-key]
        await client.lease_changes(-1, 0.1)
        await client.cursors(1)

    run(pair, calls)
    assert len(pair.asked(0)) == 1, "it was asked once, and left"
    assert len(pair.asked(1)) == 5


def test_heartbeats_and_calls_from_threads_follow_too(pair: WriteManagerPair) -> None:
    caller = ManagerCaller(Caller("secret"), WriteManagerFollower(pair.urls))
    client = WriteManagerClient(caller)
    with closing(caller):
        client.heartbeat({"name": "read-manager-1", "endpoint": "http://127.0.0.1:1"})
        pair.states = ["standby", 2]
        client.heartbeat({"name": "read-manager-1", "endpoint": "http://127.0.0.1:1"})
        client.cursors(1)
    assert [len(pair.asked(number)) for number in (0, 1)] == [2, 2]


def test_the_clients_session_token_goes_along_with_questions_about_the_catalog(pair: WriteManagerPair) -> None:
    """The write manager does not answer them from memory alone."""
    token = Token(1, 0x10)
    topics = Reply(200, {"status": "success", "topics": ["orders"]})
    pair.servers[0].script(topics, topics, Reply(), Reply())
    caller = ManagerCaller(Caller("secret"), WriteManagerFollower(pair.urls))
    client = WriteManagerClient(caller)
    with closing(caller):
        client.topics(None)
        client.topics(token)
        client.topic("orders", token)
        client.listed("cluster", Nothing(), token)
    assert [seen.headers.get("x-myqueue-token") for seen in pair.asked(0)] == [None, "1-10", "1-10", "1-10"]


def test_one_that_answers_is_left_by_threads_and_loop_when_another_one_has_taken_over(pair: WriteManagerPair) -> None:
    """It has lost only its way to PostgreSQL."""
    active = WriteManagerFollower(pair.urls)

    async def go() -> None:
        with closing(AsyncManagerCaller(AsyncCaller("secret"), active)) as managers:
            client = AsyncWriteManagerClient(managers, call_timeout_s=30)
            await client.cursors(1)
            pair.states = [Waiting(1), 2]
            changes = asyncio.create_task(client.claim(CLAIM))
            await asyncio.to_thread(until, lambda: len(pair.asked(0)) == 2)
            await asyncio.to_thread(caller.follow)
            await asyncio.to_thread(threads.cursors, 1)
            answer = await asyncio.wait_for(changes, 5)
            assert answer["by"] == 1  # type: ignore[typeddict-item]

    with closing(ManagerCaller(Caller("secret"), active)) as caller:
        threads = WriteManagerClient(caller)
        asyncio.run(go())
    assert len(pair.asked(0)) == 2


def test_a_call_that_waits_at_a_hung_one_ends_when_another_call_finds_that_another_has_taken_over(
    pair: WriteManagerPair,
) -> None:
    async def waiting(client: AsyncWriteManagerClient) -> None:
        patient = AsyncWriteManagerClient(client._managers, call_timeout_s=30, retry_s=1)
        await client.claim(CLAIM)
        pair.states = ["hangs", "standby"]
        claim = asyncio.create_task(patient.claim(CLAIM))
        with pytest.raises(ManagerUnavailable):
            await client.cursors(1)
        pair.states[1] = 2
        await client.cursors(1)
        answer = await asyncio.wait_for(claim, 3)
        assert answer["by"] == 1  # type: ignore[typeddict-item]

    run(pair, waiting)
