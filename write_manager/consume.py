"""Claims for read managers: which message a request gets."""

from collections.abc import Iterable

from myqueue.protocol.errors import ConsumerNotFound, PartitionNotFound
from myqueue.protocol.internal import Claim, ClaimRequest, ConsumerCursors, GiveBack
from myqueue.protocol.token import Token
from write_manager.cursors import Cursors
from write_manager.directory import ConsumerIdentity, Directory, Topic
from write_manager.membership import Membership
from write_manager.offsets import FreshOffsets


class Consuming:
    def __init__(self, directory: Directory, cursors: Cursors, offsets: FreshOffsets, members: Membership) -> None:
        self._directory = directory
        self._cursors = cursors
        self._offsets = offsets
        self._members = members

    def inc_offset(self, request: ClaimRequest) -> tuple[Claim | None, Token | None]:
        """Moves the consumer's cursor past one message and says which; None when there is nothing to read."""
        consumer = self._consumer(request["consumer_id"], request["topic"])
        topic = self._directory.topic(consumer.topic)
        partition_id = self._partition(consumer, topic, request["partition_id"])
        partitions = topic.partition_ids if partition_id is None else [partition_id]
        found = self._cursors.claim(
            consumer.consumer_id, request["identity"], partition_id, self._known(topic, partitions)
        )
        if found is None:
            # Known ends are lower bounds: before saying "empty", ask the leaders.
            self._offsets.ask(topic, partitions)
            found = self._cursors.claim(
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
            "endpoints": self._members.endpoints(partition.leader, partition.replicas),
        }, token

    def give_back(self, request: GiveBack) -> bool:
        consumer = self._directory.consumers.get(request["consumer_id"])
        if consumer is None:
            raise ConsumerNotFound()
        claimed = self._cursors.give_back(request["consumer_id"], request["identity"], request["attempt"])
        if claimed is not None and request["beginning_offset"] is not None:
            # Retention was faster than the reader; the next claim skips what is gone, and counts it.
            partition = self._directory.topic(consumer.topic).partitions[claimed.partition_id]
            partition.learn_bounds(request["beginning_offset"], request["beginning_offset"])
        return claimed is not None

    def cursors(self, consumer_id: int) -> ConsumerCursors:
        consumer = self._directory.consumers.get(consumer_id)
        if consumer is None:
            raise ConsumerNotFound()
        topic = self._directory.topic(consumer.topic)
        return {
            "status": "success",
            "consumer_id": consumer_id,
            "topic": consumer.topic,
            "topic_id": str(topic.topic_id),
            "cursors": [
                {"partition_id": p, "offset": offset, "given_back": given_back}
                for p, (offset, given_back) in sorted(self._cursors.positions(consumer_id).items())
            ],
        }

    def _consumer(self, consumer_id: int, topic: str) -> ConsumerIdentity:
        consumer = self._directory.consumers.get(consumer_id)
        if consumer is None or consumer.topic != topic:
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
