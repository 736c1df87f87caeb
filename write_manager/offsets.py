"""Fresh offsets from the brokers that lead a topic's partitions."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from myqueue.protocol import internal
from myqueue.protocol.errors import MyQueueError, NoLeader, PastEnd
from myqueue.protocol.internal import Offsets, OffsetsAnswer, OffsetsRequest
from myqueue.protocol.models import FromOffset, FromTimestamp, Start
from service.async_calls import AsyncCaller
from write_manager.directory import Topic
from write_manager.membership import Membership

PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Fresh:
    found: dict[int, Offsets]
    missing: tuple[int, ...]  # partitions for which no leader answered


class FreshOffsets:
    def __init__(self, caller: AsyncCaller, members: Membership, *, timeout_s: float) -> None:
        self._caller = caller
        self._members = members
        self._timeout_s = timeout_s

    async def ask(self, topic: Topic, partition_ids: Iterable[int], timestamp: int | None = None) -> Fresh:
        """Leaders answer, others do not: the one believed to lead is asked first. What they say is kept as known.

        All first candidates are asked at the same time, then the second ones for what is still open, and so on.
        """
        asked = set(partition_ids)
        candidates = {
            p: self._members.endpoints(topic.partitions[p].leader, topic.partitions[p].replicas) for p in asked
        }
        found: dict[int, Offsets] = {}
        for turn in range(max((len(endpoints) for endpoints in candidates.values()), default=0)):
            together: dict[str, list[int]] = {}
            for partition_id, endpoints in candidates.items():
                if partition_id not in found and turn < len(endpoints):
                    together.setdefault(endpoints[turn], []).append(partition_id)
            if not together:
                break
            questions = (self._question(endpoint, topic, ids, timestamp) for endpoint, ids in together.items())
            for answers in await asyncio.gather(*questions):
                found.update(answers)
        for partition_id, offsets in found.items():
            partition = topic.partitions[partition_id]
            partition.learn_bounds(offsets["beginning_offset"], offsets["end_offset"])
            if offsets["term"] >= partition.term:
                partition.leader, partition.term = offsets["leader"], offsets["term"]
        return Fresh(found, tuple(sorted(asked - found.keys())))

    async def _question(
        self, endpoint: str, topic: Topic, partition_ids: list[int], timestamp: int | None
    ) -> dict[int, Offsets]:
        request: OffsetsRequest = {
            "partitions": [{"topic_id": str(topic.topic_id), "partition_id": p} for p in partition_ids],
            "timestamp": timestamp,
        }
        try:
            answer: OffsetsAnswer = await self._caller.json(
                internal.OFFSETS.method, endpoint + internal.OFFSETS.path, request, timeout_s=self._timeout_s
            )
        except MyQueueError:
            return {}  # the next candidate may know
        return {offsets["partition_id"]: offsets for offsets in answer["offsets"] if offsets is not None}

    async def require(
        self, topic: Topic, partition_ids: Iterable[int], timestamp: int | None = None
    ) -> dict[int, Offsets]:
        """Waits a little for leaders that are being elected."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        found: dict[int, Offsets] = {}
        missing = tuple(partition_ids)
        while missing:
            fresh = await self.ask(topic, missing, timestamp)
            found |= fresh.found
            missing = fresh.missing
            if missing and loop.time() + PAUSE_S > deadline_s:
                raise NoLeader(f"partition {missing[0]} has no leader right now", outcome="not_written")
            if missing:
                await asyncio.sleep(PAUSE_S)
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
