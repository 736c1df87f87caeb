"""Fetches batches from a partition's replicas, the leader first: committed batches are the same at all replicas."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from myqueue.protocol import http_headers, internal
from myqueue.protocol.errors import MyQueueError, NoLeader, PartitionNotFound, Unavailable
from myqueue.protocol.internal import TopicRecord
from myqueue.protocol.limits import DEFAULT_FETCH_BYTES
from read_manager.metadata_cache import MetadataCache, partition_of
from service.async_calls import AsyncCaller
from service.calls import CallResponse

ATTEMPT_TIMEOUT_S = 0.5  # a replica that hangs must leave time to call another
LARGE_ATTEMPT_TIMEOUT_S = 1.0
RETRY_PAUSE_S = 0.03
LAGGING_PAUSE_S = 0.02  # before the next call when a replica lags behind the leader's high watermark
LEAST_FETCH_BYTES = 64 << 10
USUAL_STORED_BYTES = 1 << 10


@dataclass(frozen=True, slots=True)
class Fetched:
    items: bytes  # [FETCH_ITEM][batch][dedup records] repeated; empty at the end of the log
    beginning_offset: int
    end_offset: int


class ReplicaFetcher:
    def __init__(self, caller: AsyncCaller, topics: MetadataCache, *, leader_wait_s: float) -> None:
        self._caller = caller
        self._topics = topics
        self._leader_wait_s = leader_wait_s

    async def fetch(self, topic: TopicRecord, partition_id: int, offset: int, max_bytes: int) -> Fetched:
        """From the leader, else from any replica. A topic record that proves old is read again."""
        path = internal.BATCHES.path_for(topic_id=topic["topic_id"], partition_id=partition_id)
        query = f"?offset={offset}&max_bytes={max_bytes}"
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + self._leader_wait_s
        while True:
            problem: MyQueueError = NoLeader()
            for endpoint in partition_of(topic, partition_id)["endpoints"]:
                try:
                    answer = await self._caller.call("GET", endpoint + path + query, timeout_s=LARGE_ATTEMPT_TIMEOUT_S)
                    if answer.status >= 400:
                        raise answer.error()
                    return _fetched(answer)
                except (Unavailable, PartitionNotFound) as error:
                    problem = error
                if now_s() > deadline_s:
                    break
            if now_s() + RETRY_PAUSE_S > deadline_s:
                raise NoLeader(retry_after_s=1) from problem
            await asyncio.sleep(RETRY_PAUSE_S)
            again = await self._topics.topic(topic["name"], fresh=True, or_kept=True)
            if again["topic_id"] != topic["topic_id"]:
                raise PartitionNotFound("the topic was deleted and made anew") from problem
            topic = again

    async def message(
        self, topic_id: str, partition_id: int, offset: int, endpoints: Sequence[str], limit: int = 1
    ) -> bytes:
        """A batch of this message, and of up to `limit` with the next ones of its batch, and its dedup records.

        It is known to be committed: some replica has it.
        """
        path = internal.MESSAGES.path_for(topic_id=topic_id, partition_id=partition_id)
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + self._leader_wait_s
        turn = 0
        while True:
            problem: MyQueueError = NoLeader("no replica that answers has the message yet")
            if endpoints:
                url = f"{endpoints[turn % len(endpoints)]}{path}?offset={offset}&limit={limit}"
                try:
                    answer = await self._caller.call("GET", url, timeout_s=ATTEMPT_TIMEOUT_S)
                    if answer.status >= 400:
                        raise answer.error()
                    if answer.body:
                        return answer.body
                except (Unavailable, PartitionNotFound) as error:
                    problem = error
            turn += 1
            if not endpoints or now_s() + RETRY_PAUSE_S > deadline_s:
                raise NoLeader(retry_after_s=1) from problem
            await asyncio.sleep(RETRY_PAUSE_S)


def fetch_bytes(limit: int, max_bytes: int) -> int:
    """How much to fetch. A batch of one small message takes more bytes in the log than its key and value, which are
    what the client limits; and few messages need no large answer."""
    return min(max(max_bytes, DEFAULT_FETCH_BYTES), LEAST_FETCH_BYTES + limit * USUAL_STORED_BYTES)


def _fetched(answer: CallResponse) -> Fetched:
    beginning = int(answer.headers[http_headers.BEGINNING_OFFSET.lower()])
    return Fetched(answer.body, beginning, int(answer.headers[http_headers.END_OFFSET.lower()]))
