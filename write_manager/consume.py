"""What consumers ask for: claims, leases, commits, seeks."""

from collections.abc import Iterable
from contextlib import suppress

from db.registrations import ConsumerIdentity
from myqueue.protocol import answers
from myqueue.protocol.errors import ConsumerNotFound, InvalidRequest, PartitionNotFound, PastEnd
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
from myqueue.protocol.models import Commit, FromOffset, Seek
from myqueue.protocol.token import Token
from write_manager.cursors import CommitOffset, Cursors
from write_manager.directory import Directory, Topic
from write_manager.membership import Membership
from write_manager.offsets import FreshOffsets


class Consuming:
    """On the event loop."""

    def __init__(
        self, directory: Directory, cursors: Cursors, offsets: FreshOffsets, members: Membership, *, lease_s: float
    ) -> None:
        self._directory = directory
        self._cursors = cursors
        self._offsets = offsets
        self._members = members
        self._lease_s = lease_s

    async def inc_offset(self, request: ClaimRequest) -> tuple[Claim | None, Token | None]:
        """Moves the consumer's cursor past one message and says which; None when there is nothing to read."""
        consumer = await self._consumer(request["consumer_id"], request["topic"])
        topic = self._directory.topic(consumer.topic)
        partition_id = self._partition(consumer, topic, request["partition_id"])
        partitions = topic.partition_ids if partition_id is None else [partition_id]
        found = await self._cursors.claim(
            consumer.consumer_id, request["identity"], partition_id, self._known(topic, partitions)
        )
        if found is None:
            # Known ends are lower bounds: before saying "empty", ask the leaders.
            await self._offsets.ask(topic, partitions)
            found = await self._cursors.claim(
                consumer.consumer_id, request["identity"], partition_id, self._known(topic, partitions)
            )
        if found is None:
            return None, None
        claimed, token = found
        partition = topic.partitions[claimed.partition_id]
        return {
            "topic_id": str(topic.topic_id),
            "partition_id": claimed.partition_id,
            "offset": claimed.offset,
            "attempt": claimed.attempt,
            "lifetime_ms": round(claimed.lifetime_s * 1000),
            "endpoints": self._members.endpoints(partition.leader, partition.replicas),
        }, token

    async def give_back(self, request: GiveBack) -> bool:
        consumer = await self._consumer(request["consumer_id"])
        claimed = await self._cursors.give_back(request["consumer_id"], request["identity"], request["attempt"])
        if claimed is not None and request["beginning_offset"] is not None:
            # Retention was faster than the reader; the next claim skips what is gone, and counts it.
            partition = self._directory.topic(consumer.topic).partitions[claimed.partition_id]
            partition.learn_bounds(request["beginning_offset"], request["beginning_offset"])
        return claimed is not None

    async def deliver(self, request: DeliveryReport) -> None:
        """Repeating a report changes nothing; a consumer that is gone needs none."""
        by_consumer: dict[int, list[Delivered]] = {}
        for delivered in request["delivered"]:
            by_consumer.setdefault(delivered["consumer_id"], []).append(delivered)
        for consumer_id, deliveries in by_consumer.items():
            with suppress(ConsumerNotFound):
                await self._cursors.deliver(consumer_id, deliveries)

    async def cursors(self, consumer_id: int) -> ConsumerCursors:
        consumer = await self._consumer(consumer_id)
        topic = self._directory.topic(consumer.topic)
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
                    "offset": standing.offset,
                    "given_back": standing.given_back,
                    "member": standing.member,
                }
                for partition_id, standing in sorted((await self._cursors.standings(consumer_id)).items())
            ],
        }

    async def lease(self, consumer_id: int, request: LeaseRequest) -> LeaseAnswer:
        consumer = await self._consumer(consumer_id)
        topic = self._directory.topic(consumer.topic)
        # A member of a consumer that was there before this process may hold leases that it does not know of.
        not_before_s = (
            self._directory.loaded_s + self._lease_s if consumer_id < self._directory.first_new_consumer else 0
        )
        held = await self._cursors.lease(
            consumer_id, request["member"], request["released"], request["leave"], not_before_s
        )
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
        consumer = await self._consumer(consumer_id)
        topic = self._directory.topic(consumer.topic)
        wanted: dict[int, CommitOffset] = {}
        for commit in request.offsets:
            self._partition(consumer, topic, commit.partition_id)
            if commit.partition_id in wanted:
                raise InvalidRequest(f"offsets: partition {commit.partition_id} is there more than once")
            wanted[commit.partition_id] = CommitOffset(commit.offset, commit.generation)
        try:
            token = await self._cursors.commit(consumer_id, request.member, identity, wanted, self._ends(topic, wanted))
        except PastEnd:
            # Known ends are lower bounds: before saying so, ask the leaders.
            await self._offsets.require(topic, wanted)
            token = await self._cursors.commit(consumer_id, request.member, identity, wanted, self._ends(topic, wanted))
        cursors = [answers.CursorAt(partition_id=p, offset=commit.offset) for p, commit in wanted.items()]
        return answers.Committed(cursors=cursors), token

    async def seek(self, consumer_id: int, request: Seek) -> tuple[answers.Sought, Token | None]:
        consumer = await self._consumer(consumer_id)
        topic = self._directory.topic(consumer.topic)
        partition_id = self._partition(consumer, topic, request.partition_id)
        if partition_id is None and isinstance(request.to, FromOffset):
            raise InvalidRequest("to: an offset needs a partition_id")
        partitions = topic.partition_ids if partition_id is None else [partition_id]
        offsets = await self._offsets.places(topic, partitions, request.to)
        generations, token = await self._cursors.seek(consumer_id, offsets)
        cursors = [
            answers.SoughtCursor(partition_id=p, offset=offset, generation=generations[p])
            for p, offset in sorted(offsets.items())
        ]
        return answers.Sought(cursors=cursors), token

    async def _consumer(self, consumer_id: int, topic: str | None = None) -> ConsumerIdentity:
        consumer = await self._directory.consumer(consumer_id)
        if consumer is None or topic not in (None, consumer.topic):
            raise ConsumerNotFound()
        return consumer

    def _partition(self, consumer: ConsumerIdentity, topic: Topic, asked: int | None) -> int | None:
        if asked is None:
            return consumer.partition_id
        topic.partition(asked)
        if consumer.partition_id not in (None, asked):
            raise PartitionNotFound(f"the consumer reads partition {consumer.partition_id} only")
        return asked

    def _known(self, topic: Topic, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        return {p: (topic.partitions[p].beginning_offset, topic.partitions[p].end_offset) for p in partitions}

    def _ends(self, topic: Topic, partitions: Iterable[int]) -> dict[int, int]:
        return {p: topic.partitions[p].end_offset for p in partitions}
