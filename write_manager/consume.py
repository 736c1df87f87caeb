"""Consume: claim the next message of a consumer; lease, commit and seek for members that read batches."""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from pydantic import TypeAdapter

from db.registrations import ConsumerIdentity
from myqueue.protocol import answers, internal, routes
from myqueue.protocol.errors import ConsumerNotFound, InvalidRequest, PartitionNotFound, PastEnd
from myqueue.protocol.event_position import EventPosition
from myqueue.protocol.internal import (
    Claim,
    ClaimRequest,
    ConsumerCursors,
    Delivered,
    DeliveryReport,
    GiveBack,
    LeaseAnswer,
    LeaseRequest,
)
from myqueue.protocol.models import Commit, CommitOffset, FromOffset, Seek
from myqueue.protocol.token import Token
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router
from write_manager.active_state import ActiveState
from write_manager.brokers import Brokers
from write_manager.cursors import Cursors
from write_manager.leader_offsets import LeaderOffsets
from write_manager.metadata_cache import CachedTopic, MetadataCache
from write_manager.partition_assignment import MemberClient

_CLAIM = TypeAdapter(ClaimRequest)
_GIVE_BACK = TypeAdapter(GiveBack)
_DELIVERED = TypeAdapter(DeliveryReport)
_LEASE = TypeAdapter(LeaseRequest)


class Consuming:
    """Runs on the event loop."""

    def __init__(
        self,
        cache: MetadataCache,
        cursors: Cursors,
        offsets: LeaderOffsets,
        brokers: Brokers,
        state: ActiveState,
        *,
        lease_s: float,
    ) -> None:
        self._cache = cache
        self._state = state
        self._cursors = cursors
        self._offsets = offsets
        self._brokers = brokers
        self._lease_s = lease_s

    async def claim(self, request: ClaimRequest) -> tuple[Claim | None, Token | None]:
        """Move the consumer's cursor past one message and return that message's place; None at the end."""
        self._state.check_database()
        consumer = await self._consumer(request["consumer_id"], request["topic"])
        topic = self._cache.topic(consumer.topic)
        partition_id = self._partition(consumer, topic, request["partition_id"])
        partitions = topic.partition_ids if partition_id is None else [partition_id]
        found = await self._cursors.claim(
            consumer.consumer_id, request["identity"], partition_id, self._known(topic, partitions)
        )
        if found is None:
            # Known ends are lower bounds of the high watermarks: before answering "empty", query the leaders.
            await self._offsets.fetch(topic, partitions)
            found = await self._cursors.claim(
                consumer.consumer_id, request["identity"], partition_id, self._known(topic, partitions)
            )
        if found is None:
            await self._state.await_verified()
            return None, None
        claimed, token = found
        partition = topic.partitions[claimed.partition_id]
        return {
            "topic_id": str(topic.topic_id),
            "partition_id": claimed.partition_id,
            "offset": claimed.offset,
            "attempt": claimed.attempt,
            "lifetime_ms": round(claimed.lifetime_s * 1000),
            "endpoints": self._brokers.endpoints(partition.leader, partition.replicas),
        }, token

    async def give_back(self, request: GiveBack) -> bool:
        await self._state.await_verified()
        consumer = await self._consumer(request["consumer_id"])
        claimed = await self._cursors.give_back(request["consumer_id"], request["identity"], request["attempt"])
        if claimed is not None and request["beginning_offset"] is not None:
            # Retention deleted the message first; the next claim skips to the beginning, and counts the skipped ones.
            partition = self._cache.topic(consumer.topic).partitions[claimed.partition_id]
            partition.learn_bounds(request["beginning_offset"], request["beginning_offset"])
        return claimed is not None

    async def deliver(self, request: DeliveryReport) -> None:
        """Idempotent; reports for deleted consumers are ignored."""
        await self._state.await_verified()
        by_consumer: dict[int, list[Delivered]] = {}
        for delivered in request["delivered"]:
            by_consumer.setdefault(delivered["consumer_id"], []).append(delivered)
        for consumer_id, deliveries in by_consumer.items():
            with suppress(ConsumerNotFound):
                await self._cursors.deliver(consumer_id, deliveries)

    async def cursors(self, consumer_id: int) -> ConsumerCursors:
        consumer = await self._consumer(consumer_id)
        topic = self._cache.topic(consumer.topic)
        statuses = await self._cursors.statuses(consumer_id)
        await self._state.await_verified()
        return {
            "status": "success",
            "consumer_id": consumer_id,
            "topic": consumer.topic,
            "topic_id": str(topic.topic_id),
            "name": consumer.name,
            "partition_id": consumer.partition_id,
            "cursors": [
                {
                    "partition_id": partition_id,
                    "offset": status.offset,
                    "given_back": status.given_back,
                    "member": status.member,
                    "client_id": status.client.client_id,
                    "host": status.client.host,
                    "in_flight": status.in_flight,
                    "revoking": status.is_revoking,
                }
                for partition_id, status in sorted(statuses.items())
            ],
        }

    async def lease(self, consumer_id: int, request: LeaseRequest) -> LeaseAnswer:
        consumer = await self._consumer(consumer_id)
        topic = self._cache.topic(consumer.topic)
        # Members of a consumer that is older than this process may hold leases that are not known here.
        not_before_s = self._cache.leases_from_s if consumer_id < self._cache.first_new_consumer_id else 0
        await self._state.await_verified()  # before the decision, which would move leases, and after it
        held = await self._cursors.lease(
            consumer_id,
            request["member"],
            request["released"],
            request["leave"],
            not_before_s,
            held=request.get("held", ()),
            may_join=not request.get("renewal", False),
            client=MemberClient(request.get("client_id"), request.get("host")),
        )
        await self._state.await_verified()
        return {
            "status": "success",
            "consumer_id": consumer_id,
            "topic": consumer.topic,
            "topic_id": str(topic.topic_id),
            "lease_ms": round(self._lease_s * 1000),
            "leases": [
                {
                    "partition_id": lease.partition_id,
                    "generation": lease.generation,
                    "cursor": cursor,
                    "revoking": lease.revoking,
                }
                for lease, cursor in held
            ],
        }

    async def commit(
        self, consumer_id: int, request: Commit, identity: str | None
    ) -> tuple[answers.Committed, Token | None]:
        self._state.check_database()
        consumer = await self._consumer(consumer_id)
        topic = self._cache.topic(consumer.topic)
        wanted: dict[int, CommitOffset] = {}
        for commit in self._offsets_of(request, consumer, topic):
            self._partition(consumer, topic, commit.partition_id)
            if commit.partition_id in wanted:
                raise InvalidRequest(f"offsets: partition {commit.partition_id} is there more than once")
            wanted[commit.partition_id] = commit
        try:
            token = await self._cursors.commit(consumer_id, request.member, identity, wanted, self._ends(topic, wanted))
        except PastEnd:
            # Known ends are lower bounds of the high watermarks: before refusing, query the leaders.
            await self._offsets.require(topic, wanted)
            token = await self._cursors.commit(consumer_id, request.member, identity, wanted, self._ends(topic, wanted))
        cursors = [answers.CursorAt(partition_id=p, offset=commit.offset) for p, commit in wanted.items()]
        return answers.Committed(cursors=cursors), token

    def _offsets_of(self, request: Commit, consumer: ConsumerIdentity, topic: CachedTopic) -> Sequence[CommitOffset]:
        if request.event_id is None:
            return request.offsets or ()
        partitions = topic.partition_ids if consumer.partition_id is None else [consumer.partition_id]
        offsets = EventPosition.parse(request.event_id).offsets_in(str(topic.topic_id), partitions)
        return [CommitOffset(partition_id=p, offset=offset) for p, offset in offsets.items()]

    async def seek(self, consumer_id: int, request: Seek) -> tuple[answers.Sought, Token | None]:
        self._state.check_database()
        consumer = await self._consumer(consumer_id)
        topic = self._cache.topic(consumer.topic)
        partition_id = self._partition(consumer, topic, request.partition_id)
        if partition_id is None and isinstance(request.to, FromOffset):
            raise InvalidRequest("to: an offset needs a partition_id")
        partitions = topic.partition_ids if partition_id is None else [partition_id]
        offsets = await self._offsets.resolve(topic, partitions, request.to)
        generations, token = await self._cursors.seek(consumer_id, offsets)
        cursors = [
            answers.SoughtCursor(partition_id=p, offset=offset, generation=generations[p])
            for p, offset in sorted(offsets.items())
        ]
        return answers.Sought(cursors=cursors), token

    async def _consumer(self, consumer_id: int, topic: str | None = None) -> ConsumerIdentity:
        consumer = await self._cache.consumer(consumer_id)
        if consumer is None or topic not in (None, consumer.topic):
            raise ConsumerNotFound()
        return consumer

    def _partition(self, consumer: ConsumerIdentity, topic: CachedTopic, wanted: int | None) -> int | None:
        if wanted is None:
            return consumer.partition_id
        topic.partition(wanted)
        if consumer.partition_id not in (None, wanted):
            raise PartitionNotFound(f"the consumer reads partition {consumer.partition_id} only")
        return wanted

    def _known(self, topic: CachedTopic, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        return {p: (topic.partitions[p].beginning_offset, topic.partitions[p].end_offset) for p in partitions}

    def _ends(self, topic: CachedTopic, partitions: Iterable[int]) -> dict[int, int]:
        return {p: topic.partitions[p].end_offset for p in partitions}


def add_cursor_routes(router: Router, consuming: Consuming) -> None:
    async def commit(request: HttpRequest) -> HttpResponse:
        body, token = await consuming.commit(
            _consumer_id(request), request.parse_json(Commit), request.idempotency_key()
        )
        return HttpResponse.json(body, session_token=token)

    async def seek(request: HttpRequest) -> HttpResponse:
        body, token = await consuming.seek(_consumer_id(request), request.parse_json(Seek))
        return HttpResponse.json(body, session_token=token)

    router.add(routes.COMMIT, commit)
    router.add(routes.SEEK, seek)


def add_claim_routes(router: Router, consuming: Consuming) -> None:
    """For read managers, which deliver the messages."""

    async def claim(request: HttpRequest) -> HttpResponse:
        claimed, token = await consuming.claim(request.parse_internal(_CLAIM))
        return HttpResponse.json(
            {"status": "success", "claim": claimed, "token": None if token is None else str(token)}
        )

    async def give_back(request: HttpRequest) -> HttpResponse:
        given_back = await consuming.give_back(request.parse_internal(_GIVE_BACK))
        return HttpResponse.json({"status": "success", "given_back": given_back})

    async def deliver(request: HttpRequest) -> HttpResponse:
        await consuming.deliver(request.parse_internal(_DELIVERED))
        return HttpResponse.json({"status": "success"})

    async def cursors(request: HttpRequest) -> HttpResponse:
        return HttpResponse.json(await consuming.cursors(_consumer_id(request)))

    async def lease(request: HttpRequest) -> HttpResponse:
        return HttpResponse.json(await consuming.lease(_consumer_id(request), request.parse_internal(_LEASE)))

    router.add(internal.CLAIM, claim)
    router.add(internal.GIVE_BACK, give_back)
    router.add(internal.DELIVERED, deliver)
    router.add(internal.CURSORS, cursors)
    router.add(internal.LEASE, lease)


def _consumer_id(request: HttpRequest) -> int:
    return request.path_id("consumer_id", ConsumerNotFound)
