"""Offsets of a topic's partitions, from the brokers that lead them: only a leader has the current high watermark,
which is the end offset that readers see."""

from collections.abc import Iterable, Mapping

from myqueue.protocol import internal
from myqueue.protocol.errors import NoLeader
from myqueue.protocol.internal import (
    TopicRecord,
)
from myqueue.protocol.message_calls import (
    Offsets,
    OffsetsAnswer,
    OffsetsRequest,
    PartitionName,
)
from service.async_calls import AsyncCaller
from service.candidate_calls import ask_candidates, ask_until_answered


class LeaderOffsets:
    def __init__(self, caller: AsyncCaller, *, timeout_s: float) -> None:
        self._caller = caller
        self._timeout_s = timeout_s

    async def ask(
        self,
        topic: TopicRecord,
        partition_ids: Iterable[int],
        *,
        await_election: bool = False,
        timestamp: int | None = None,
        since: Mapping[int, int] | None = None,
    ) -> dict[int, Offsets]:
        """Partitions for which no leader answered are missing. `await_election` repeats the calls for a while."""

        async def ask_endpoint(endpoint: str, ids: list[int]) -> dict[int, Offsets]:
            names: list[PartitionName] = [{"topic_id": topic["topic_id"], "partition_id": p} for p in ids]
            if since is not None:
                for name in names:
                    name["since"] = since.get(name["partition_id"])
            request: OffsetsRequest = {"partitions": names, "timestamp": timestamp}
            answer: OffsetsAnswer = await self._caller.json(
                internal.OFFSETS.method, endpoint + internal.OFFSETS.path, request, timeout_s=self._timeout_s
            )
            return {entry["partition_id"]: entry for entry in answer["offsets"] if entry is not None}

        return await ask_until_answered(
            partition_ids,
            lambda ids: ask_candidates({p: topic["partitions"][p]["endpoints"] for p in ids}, ask_endpoint),
            self._timeout_s if await_election else 0,
        )

    async def require(
        self,
        topic: TopicRecord,
        partition_ids: Iterable[int],
        *,
        timestamp: int | None = None,
        since: Mapping[int, int] | None = None,
    ) -> dict[int, Offsets]:
        """Fails unless every partition has an answer, elections awaited."""
        wanted = list(partition_ids)
        found = await self.ask(topic, wanted, await_election=True, timestamp=timestamp, since=since)
        for p in wanted:
            if p not in found:
                raise NoLeader(f"partition {p} has no leader right now", retry_after_s=1)
        return found
