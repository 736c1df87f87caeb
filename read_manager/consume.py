"""Consume one message: claim it at the write manager, fetch it from a broker, report that it was delivered.

A claim whose message cannot be fetched is given back. A claim's lifetime is counted here from the moment of the
request, so that it ends before the write manager lets another request claim the message; an expired claim is never
delivered.
"""

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from myqueue.protocol import internal, routes
from myqueue.protocol.answers import Consumed
from myqueue.protocol.errors import (
    ConsumerNotFound,
    ManagerUnavailable,
    MyQueueError,
    OffsetOutOfRange,
    TopicNotFound,
)
from myqueue.protocol.internal import Claim, Delivered, TopicRecord
from myqueue.protocol.limits import MAX_WAIT_MS
from myqueue.protocol.models import Consume
from myqueue.protocol.token import Token
from read_manager.delivery_reports import DeliveryReporter
from read_manager.long_poll import ClientConnection, LongPolls, with_remaining_wait
from read_manager.metadata_cache import MetadataCache, partition_of
from read_manager.read_ahead import ReadAhead
from read_manager.replica_fetch import ReplicaFetcher
from read_manager.write_manager_client import AsyncWriteManagerClient
from service.http_messages import HttpRequest, HttpResponse
from service.logs import Log
from service.router import Router

CLAIM_AGAIN_S = 5.0  # without growth too: a claim can be given back, a cursor sought, a lease released
KEPT_CONSUMERS = 10_000
DEFAULT_LIFETIME_MS = 10_000  # for a write manager that names none: an upgrade may replace it last
WATCH_CLIENT_AFTER_S = 0.1  # watching for a closed connection costs more than most requests take

Ends = dict[int, int]


@dataclass(frozen=True, slots=True)
class _HeldClaim:
    """A claim that this process may deliver until it expires."""

    claim: Claim
    token: str | None
    lifetime_s: float
    expires_s: float


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    message: Consumed
    token: str | None
    lifetime_s: float


class _WaitingRequests:
    """Requests of one consumer that wait here: at ends where one of them claimed nothing, the others need not try."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0
        self.empty: Ends | None = None  # the ends as of the last claim that found nothing
        self.claimed_s = 0.0  # the time of that claim

    async def take_turn(self, deadline_s: float) -> bool:
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self.lock.acquire()
        except TimeoutError:
            return False


class ConsumeHandler:
    def __init__(
        self,
        write_manager: AsyncWriteManagerClient,
        replicas: ReplicaFetcher,
        topics: MetadataCache,
        long_polls: LongPolls,
        deliveries: DeliveryReporter,
        log: Log,
    ) -> None:
        self._write_manager = write_manager
        self._messages = ReadAhead(replicas)
        self._topics = topics
        self._long_polls = long_polls
        self._deliveries = deliveries
        self._log = log
        self._waiting: dict[tuple[int, int | None], _WaitingRequests] = {}
        self._partition_of: OrderedDict[int, int | None] = OrderedDict()  # of a consumer; it never changes

    def add_routes(self, router: Router) -> None:
        router.add(routes.CONSUME, self.consume)

    async def consume(self, request: HttpRequest) -> HttpResponse:
        query, identity = with_remaining_wait(request.parse_query(Consume), request), _identity(request)
        with ClientConnection(request.client_disconnected) as client:
            claimed = await self.next_message(query, identity, request.session_token(), client)
        if claimed is None:
            return HttpResponse.empty()
        response = HttpResponse.json(claimed.message, session_token=claimed.token)
        delivered: Delivered = {
            "consumer_id": query.consumer_id,
            "identity": identity,
            "partition_id": claimed.message.partition_id,
            "offset": claimed.message.offset,
        }
        response.on_sent = partial(self._deliveries.add, delivered, claimed.lifetime_s)
        return response

    async def next_message(
        self, request: Consume, identity: str, token: Token | None, client: ClientConnection
    ) -> ClaimedMessage | None:
        """None when there is nothing to read."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + min(request.wait_ms, MAX_WAIT_MS) / 1000
        watching = loop.call_later(WATCH_CLIENT_AFTER_S, client.watch)
        try:
            return await self._next_message(request, identity, token, client, deadline_s)
        finally:
            watching.cancel()

    async def _next_message(
        self, request: Consume, identity: str, token: Token | None, client: ClientConnection, deadline_s: float
    ) -> ClaimedMessage | None:
        held = await self._claim(request, identity)
        if held is None and request.wait_ms:
            with self._waiting_with(request) as waiting:
                held = await self._wait(request, identity, token, client, waiting, deadline_s)
        while held is not None:
            try:
                message = await self._fetch(held.claim)
                if client.is_closed:
                    await self._give_back(request.consumer_id, identity, held.claim, None)
                    return None
                if asyncio.get_running_loop().time() >= held.expires_s:
                    # Another request may have claimed the message by now.
                    raise ManagerUnavailable("the message could not be read in time; ask again", retry_after_s=1)
                return ClaimedMessage(message, held.token, held.lifetime_s)
            except OffsetOutOfRange as error:
                # Retention was faster. With the beginning offset, the next claim skips the deleted messages.
                beginning_offset = error.details.get("beginning_offset")
                await self._give_back(request.consumer_id, identity, held.claim, beginning_offset)
                if client.is_closed or beginning_offset is None or beginning_offset <= held.claim["offset"]:
                    raise ManagerUnavailable("the message cannot be read right now", retry_after_s=1) from error
                held = await self._claim(request, identity)
            except MyQueueError:
                await self._give_back(request.consumer_id, identity, held.claim, None)
                raise
        return None

    async def _wait(
        self,
        request: Consume,
        identity: str,
        token: Token | None,
        client: ClientConnection,
        waiting: _WaitingRequests,
        deadline_s: float,
    ) -> _HeldClaim | None:
        now_s = asyncio.get_running_loop().time
        topic = await self._topic(request.topic, token)
        partitions = await self._partitions(request, topic)
        await self._long_polls.watched_ends(topic, partitions, deadline_s)
        claimed = False
        while True:
            if not await waiting.take_turn(deadline_s):
                return None
            try:
                seen = self._long_polls.known_ends(topic, partitions)
                # A message may have come before the watch began: every request claims once.
                if not claimed or waiting.empty != seen or now_s() - waiting.claimed_s >= CLAIM_AGAIN_S:
                    held = await self._claim(request, identity)
                    if held is not None:
                        return held
                    claimed, waiting.empty, waiting.claimed_s = True, seen, now_s()
            finally:
                waiting.lock.release()
            await self._long_polls.wait_beyond(topic, seen, min(deadline_s, waiting.claimed_s + CLAIM_AGAIN_S), client)
            if self._long_polls.stopping or client.is_closed or now_s() >= deadline_s:
                return None

    @contextmanager
    def _waiting_with(self, request: Consume) -> Iterator[_WaitingRequests]:
        key = (request.consumer_id, request.partition_id)
        waiting = self._waiting.setdefault(key, _WaitingRequests())
        waiting.count += 1
        try:
            yield waiting
        finally:
            waiting.count -= 1
            if not waiting.count:
                del self._waiting[key]

    async def _topic(self, name: str, token: Token | None) -> TopicRecord:
        try:
            return await self._topics.topic(name, token)
        except TopicNotFound:
            raise ConsumerNotFound() from None

    async def _partitions(self, request: Consume, topic: TopicRecord) -> list[int]:
        if request.partition_id is not None:
            return [partition_of(topic, request.partition_id)["partition_id"]]
        if request.consumer_id not in self._partition_of:
            consumer = await self._write_manager.cursors(request.consumer_id)
            self._partition_of[request.consumer_id] = consumer["partition_id"]
            if len(self._partition_of) > KEPT_CONSUMERS:
                self._partition_of.popitem(last=False)
        only = self._partition_of[request.consumer_id]
        return list(range(len(topic["partitions"]))) if only is None else [only]

    async def _claim(self, request: Consume, identity: str) -> _HeldClaim | None:
        requested_s = asyncio.get_running_loop().time()
        answer = await self._write_manager.claim(
            {
                "topic": request.topic,
                "consumer_id": request.consumer_id,
                "partition_id": request.partition_id,
                "identity": identity,
            }
        )
        claim = answer["claim"]
        if claim is None:
            return None
        lifetime_s = claim.get("lifetime_ms", DEFAULT_LIFETIME_MS) / 1000
        return _HeldClaim(claim, answer["token"], lifetime_s, requested_s + lifetime_s)

    async def _fetch(self, claim: Claim) -> Consumed:
        return await self._messages.message(
            claim["topic_id"], claim["partition_id"], claim["offset"], claim["endpoints"]
        )

    async def _give_back(self, consumer_id: int, identity: str, claim: Claim, beginning_offset: int | None) -> None:
        try:
            await self._write_manager.give_back(
                {
                    "consumer_id": consumer_id,
                    "identity": identity,
                    "attempt": claim["attempt"],
                    "beginning_offset": beginning_offset,
                }
            )
        except MyQueueError as error:
            # The claim stays in flight until it expires; then the message is delivered again.
            self._log.warning(
                "claim not given back", consumer_id=consumer_id, offset=claim["offset"], why=error.message
            )


def _identity(request: HttpRequest) -> str:
    """A retry has the identity of the first attempt: the client's key, else the load balancer's id of the request."""
    key = request.idempotency_key()
    if key is not None:
        return internal.KEY_IDENTITY + key
    return internal.REQUEST_IDENTITY + (request.request_id or uuid.uuid4().hex)
