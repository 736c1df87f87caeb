"""dequeue: a claim at the write manager, then the message from a broker.

A message that cannot be had is given back. A claim has a lifetime, counted here from the moment it was asked for, so
that it ends before the write manager lets another request read the message: after it nothing is delivered.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from myqueue.protocol import batch as wire
from myqueue.protocol.answers import Consumed
from myqueue.protocol.dedup_records import decode_dedup_records
from myqueue.protocol.errors import (
    ConsumerNotFound,
    ManagerUnavailable,
    MyQueueError,
    OffsetOutOfRange,
    TopicNotFound,
)
from myqueue.protocol.internal import Claim, TopicRecord
from myqueue.protocol.limits import MAX_WAIT_MS
from myqueue.protocol.models import Consume
from myqueue.protocol.token import Token
from read_manager.client import Client
from read_manager.replicas import Replicas
from read_manager.topics import Topics, partition_of
from read_manager.watches import Watches
from read_manager.write_manager_calls import WriteManagerAsks
from service.logs import Log

LOOK_AGAIN_S = 5.0  # a message can also come back: given back, sought, or no longer leased
KEPT_CONSUMERS = 10_000
UNTOLD_LIFETIME_MS = 10_000  # by a write manager that never ends claims: while an upgrade replaces read managers first
HANG_UP_LOOK_S = 0.1  # looking whether a client has hung up costs more than most requests take

Ends = dict[int, int]


@dataclass(frozen=True, slots=True)
class _Held:
    """A claim that this process may deliver until it expires."""

    claim: Claim
    token: str | None
    lifetime_s: float
    expires_s: float


@dataclass(frozen=True, slots=True)
class Dequeued:
    message: Consumed
    token: str | None
    lifetime_s: float


class _Line:
    """Requests of one consumer that wait here: what one of them found empty, the others need not try."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.members = 0
        self.empty: Ends | None = None  # the ends, taken before a claim that found nothing
        self.looked_s = 0.0  # when that was

    async def step_up(self, deadline_s: float) -> bool:
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self.lock.acquire()
        except TimeoutError:
            return False


class Dequeue:
    def __init__(
        self, write_manager: WriteManagerAsks, replicas: Replicas, topics: Topics, watches: Watches, log: Log
    ) -> None:
        self._write_manager = write_manager
        self._replicas = replicas
        self._topics = topics
        self._watches = watches
        self._log = log
        self._lines: dict[tuple[int, int | None], _Line] = {}
        self._partition_of: OrderedDict[int, int | None] = OrderedDict()  # a consumer's, which never changes

    async def next_message(
        self, request: Consume, identity: str, token: Token | None, client: Client
    ) -> Dequeued | None:
        """None when there is nothing to read."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + min(request.wait_ms, MAX_WAIT_MS) / 1000
        look = loop.call_later(HANG_UP_LOOK_S, client.watch)
        try:
            return await self._next_message(request, identity, token, client, deadline_s)
        finally:
            look.cancel()

    async def _next_message(
        self, request: Consume, identity: str, token: Token | None, client: Client, deadline_s: float
    ) -> Dequeued | None:
        held = await self._claim(request, identity)
        if held is None and request.wait_ms:
            with self._in_line(request) as line:
                held = await self._wait(request, identity, token, client, line, deadline_s)
        while held is not None:
            try:
                message = await self._fetch(held.claim)
                if client.left:
                    await self._give_back(request.consumer_id, identity, held.claim, None)
                    return None
                if asyncio.get_running_loop().time() >= held.expires_s:
                    # Another request may have it by now.
                    raise ManagerUnavailable("the message could not be read in time; ask again", retry_after_s=1)
                return Dequeued(message, held.token, held.lifetime_s)
            except OffsetOutOfRange as error:
                # Retention was faster. Once the write manager knows, the next claim lies behind what is gone.
                beginning_offset = error.details.get("beginning_offset")
                await self._give_back(request.consumer_id, identity, held.claim, beginning_offset)
                if client.left or beginning_offset is None or beginning_offset <= held.claim["offset"]:
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
        client: Client,
        line: _Line,
        deadline_s: float,
    ) -> _Held | None:
        now_s = asyncio.get_running_loop().time
        topic = await self._topic(request.topic, token)
        partitions = await self._partitions(request, topic)
        await self._watches.ends(topic, partitions, deadline_s)
        looked = False
        while True:
            if not await line.step_up(deadline_s):
                return None
            try:
                seen = self._watches.known(topic, partitions)
                # Before there was anything to watch a message may have come: everybody looks once.
                if not looked or line.empty != seen or now_s() - line.looked_s >= LOOK_AGAIN_S:
                    held = await self._claim(request, identity)
                    if held is not None:
                        return held
                    looked, line.empty, line.looked_s = True, seen, now_s()
            finally:
                line.lock.release()
            await self._watches.grown(topic, seen, min(deadline_s, line.looked_s + LOOK_AGAIN_S), client)
            if self._watches.stopping or client.left or now_s() >= deadline_s:
                return None

    @contextmanager
    def _in_line(self, request: Consume) -> Iterator[_Line]:
        key = (request.consumer_id, request.partition_id)
        line = self._lines.setdefault(key, _Line())
        line.members += 1
        try:
            yield line
        finally:
            line.members -= 1
            if not line.members:
                del self._lines[key]

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

    async def _claim(self, request: Consume, identity: str) -> _Held | None:
        asked_s = asyncio.get_running_loop().time()
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
        lifetime_s = claim.get("lifetime_ms", UNTOLD_LIFETIME_MS) / 1000
        return _Held(claim, answer["token"], lifetime_s, asked_s + lifetime_s)

    async def _fetch(self, claim: Claim) -> Consumed:
        data = await self._replicas.message(
            claim["topic_id"], claim["partition_id"], claim["offset"], claim["endpoints"]
        )
        header, body, rest = wire.split(data)
        wire.check_body(header, body)
        message = wire.messages_of(wire.decode_body(body))[0]
        marks = decode_dedup_records(rest, header.count)
        producer_id = marks[0].producer_id if marks else header.producer_id
        return Consumed(
            message=message.value,
            key=message.key,
            partition_id=claim["partition_id"],
            offset=header.base_offset,
            timestamp=message.timestamp,
            producer_id=None if producer_id == wire.NO_PRODUCER else producer_id,
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
            # The claim stays in flight until it expires: then the message is read again.
            self._log.warning(
                "claim not given back", consumer_id=consumer_id, offset=claim["offset"], why=error.message
            )
