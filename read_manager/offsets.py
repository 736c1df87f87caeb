"""Offsets of a topic's partitions, straight from the brokers that lead them."""

import asyncio
from collections.abc import Iterable, Mapping

from myqueue.protocol import internal
from myqueue.protocol.errors import MyQueueError, NoLeader
from myqueue.protocol.internal import Offsets, OffsetsAnswer, OffsetsRequest, PartitionName, TopicRecord
from service.async_calls import AsyncCaller

PAUSE_S = 0.05


class PartitionOffsets:
    def __init__(self, caller: AsyncCaller, *, timeout_s: float) -> None:
        self._caller = caller
        self._timeout_s = timeout_s

    async def ask(
        self,
        topic: TopicRecord,
        partition_ids: Iterable[int],
        *,
        timestamp: int | None = None,
        since: Mapping[int, int] | None = None,
    ) -> dict[int, Offsets]:
        """As the leaders say, who alone know. Partitions without a leader that answers are missing.

        All first addresses are asked at the same time, then the second ones for what is still open, and so on.
        """
        candidates = {p: topic["partitions"][p]["endpoints"] for p in partition_ids}
        found: dict[int, Offsets] = {}
        for turn in range(max(map(len, candidates.values()), default=0)):
            questions: dict[str, list[PartitionName]] = {}
            for p, endpoints in candidates.items():
                if p not in found and turn < len(endpoints):
                    name: PartitionName = {"topic_id": topic["topic_id"], "partition_id": p}
                    if since is not None:
                        name["since"] = since.get(p)
                    questions.setdefault(endpoints[turn], []).append(name)
            answers = await asyncio.gather(
                *(self._question(endpoint, names, timestamp) for endpoint, names in questions.items())
            )
            found.update((entry["partition_id"], entry) for entries in answers for entry in entries)
        return found

    async def _question(self, endpoint: str, names: list[PartitionName], timestamp: int | None) -> list[Offsets]:
        request: OffsetsRequest = {"partitions": names, "timestamp": timestamp}
        try:
            answer: OffsetsAnswer = await self._caller.json(
                internal.OFFSETS.method, endpoint + internal.OFFSETS.path, request, timeout_s=self._timeout_s
            )
        except MyQueueError:
            return []  # the next address may know
        return [entry for entry in answer["offsets"] if entry is not None]

    async def patiently(
        self,
        topic: TopicRecord,
        partition_ids: Iterable[int],
        *,
        timestamp: int | None = None,
        since: Mapping[int, int] | None = None,
    ) -> dict[int, Offsets]:
        """As `ask`, but waits a little for leaders that are being elected."""
        wanted = list(partition_ids)
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + self._timeout_s
        found: dict[int, Offsets] = {}
        while missing := [p for p in wanted if p not in found]:
            found |= await self.ask(topic, missing, timestamp=timestamp, since=since)
            if len(found) < len(wanted):
                if now_s() + PAUSE_S > deadline_s:
                    break
                await asyncio.sleep(PAUSE_S)
        return found

    async def require(
        self,
        topic: TopicRecord,
        partition_ids: Iterable[int],
        *,
        timestamp: int | None = None,
        since: Mapping[int, int] | None = None,
    ) -> dict[int, Offsets]:
        """Of all of them, or it fails."""
        wanted = list(partition_ids)
        found = await self.patiently(topic, wanted, timestamp=timestamp, since=since)
        for p in wanted:
            if p not in found:
                raise NoLeader(f"partition {p} has no leader right now", retry_after_s=1)
        return found
