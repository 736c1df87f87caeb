"""Fresh offsets from the brokers that lead a topic's partitions."""

from collections.abc import Iterable, Mapping

from myqueue.protocol import internal
from myqueue.protocol.errors import NoLeader, PastEnd
from myqueue.protocol.internal import Offsets, OffsetsAnswer, OffsetsRequest
from myqueue.protocol.models import FromOffset, FromTimestamp, Start
from service.async_calls import AsyncCaller
from service.candidate_calls import ask_candidates, ask_until_answered
from write_manager.directory import Topic
from write_manager.membership import Membership


class FreshOffsets:
    def __init__(self, caller: AsyncCaller, members: Membership, *, timeout_s: float) -> None:
        self._caller = caller
        self._members = members
        self._timeout_s = timeout_s

    async def ask(self, topic: Topic, partition_ids: Iterable[int], timestamp: int | None = None) -> dict[int, Offsets]:
        """Offsets from the leaders, the believed one first. The topic's partitions learn the answers.

        Partitions for which no leader answered are missing.
        """

        async def ask(endpoint: str, ids: list[int]) -> dict[int, Offsets]:
            request: OffsetsRequest = {
                "partitions": [{"topic_id": str(topic.topic_id), "partition_id": p} for p in ids],
                "timestamp": timestamp,
            }
            answer: OffsetsAnswer = await self._caller.json(
                internal.OFFSETS.method, endpoint + internal.OFFSETS.path, request, timeout_s=self._timeout_s
            )
            return {offsets["partition_id"]: offsets for offsets in answer["offsets"] if offsets is not None}

        found = await ask_candidates(
            {
                p: self._members.endpoints(topic.partitions[p].leader, topic.partitions[p].replicas)
                for p in partition_ids
            },
            ask,
        )
        for partition_id, offsets in found.items():
            partition = topic.partitions[partition_id]
            partition.learn_bounds(offsets["beginning_offset"], offsets["end_offset"])
            if offsets["term"] >= partition.term:
                partition.leader, partition.term = offsets["leader"], offsets["term"]
        return found

    async def require(
        self, topic: Topic, partition_ids: Iterable[int], timestamp: int | None = None
    ) -> dict[int, Offsets]:
        """Offsets of all of them. Waits a little for leaders that are being elected."""
        wanted = sorted(set(partition_ids))
        found = await ask_until_answered(wanted, lambda ids: self.ask(topic, ids, timestamp), self._timeout_s)
        for partition_id in wanted:
            if partition_id not in found:
                raise NoLeader(f"partition {partition_id} has no leader right now", outcome="not_written")
        return found

    async def places(self, topic: Topic, partition_ids: Iterable[int], start: Start) -> dict[int, int]:
        """The offset that a start stands for, in each of the partitions."""
        timestamp = start.timestamp if isinstance(start, FromTimestamp) else None
        return places(start, await self.require(topic, partition_ids, timestamp))


def places(start: Start, found: Mapping[int, Offsets]) -> dict[int, int]:
    if isinstance(start, FromOffset):
        for partition_id, offsets in found.items():
            if start.offset > offsets["end_offset"]:
                raise PastEnd(
                    f"offset {start.offset} is past the end, {offsets['end_offset']}",
                    details={"partition_id": partition_id, "end_offset": offsets["end_offset"]},
                )
        return {p: max(start.offset, offsets["beginning_offset"]) for p, offsets in found.items()}
    if isinstance(start, FromTimestamp):
        return {p: o["end_offset"] if o["offset_at"] is None else o["offset_at"] for p, o in found.items()}
    if start == "earliest":
        return {p: o["beginning_offset"] for p, o in found.items()}
    return {p: o["end_offset"] for p, o in found.items()}
