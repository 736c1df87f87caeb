"""Batches on their way to the brokers: one under way for each partition, one call for those that are ready together."""

import asyncio
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from myqueue.protocol import http_headers, internal
from myqueue.protocol.errors import (
    InternalError,
    MyQueueError,
    NotLeader,
    PartitionNotFound,
    Unavailable,
    from_body,
)
from myqueue.protocol.internal import AppendAnswer, AppendAnswers, AppendFailure
from service.async_calls import AsyncCaller
from service.logs import Log
from write_manager.coalescing import Lane, Waiting
from write_manager.directory import Partition, Topic
from write_manager.membership import Membership
from write_manager.turns import Turns

RETRY_PAUSE_S = 0.03
CALL_BYTES = 2 << 20  # beyond this the next batches go in another call
ATTEMPT_TIMEOUT_S = 1.0  # a leader that hangs must leave time to ask another replica


@dataclass(slots=True, eq=False)
class _Way:
    """A lane and where its partition is believed to be led."""

    lane: Lane
    partition: Partition
    turn: int = 0
    troubled: bool = False  # the last attempt failed: then it goes alone, so that nobody waits for it


class Appends:
    """On the event loop, without locks or threads."""

    def __init__(
        self, caller: AsyncCaller, members: Membership, log: Log, *, leader_wait_s: float, timeout_s: float
    ) -> None:
        self._caller = caller
        self._members = members
        self._log = log
        self._leader_wait_s = leader_wait_s
        self._timeout_s = timeout_s
        self._ways: dict[tuple[UUID, int], _Way] = {}  # those that are at work
        self._turns = Turns(self._add)
        self._ready: list[_Way] = []
        self._sending: set[asyncio.Task[None]] = set()

    def add(self, topic: Topic, partition: Partition | None, waiting: Waiting) -> None:
        """Without a partition it goes where the topic's turn is."""
        waiting.came_s = asyncio.get_running_loop().time()
        if partition is None:
            self._turns.add(topic, waiting)
        else:
            self._add(topic.topic_id, partition, waiting)

    def _add(self, topic_id: UUID, partition: Partition, waiting: Waiting) -> None:
        key = (topic_id, partition.partition_id)
        way = self._ways.get(key)
        if way is None:
            way = self._ways[key] = _Way(Lane(topic_id, partition.partition_id), partition)
            self._make_ready(way)
        way.lane.queue.append(waiting)

    def _make_ready(self, way: _Way) -> None:
        if not self._ready:
            # After everything else that is at hand right now: what came at the same time goes out together.
            asyncio.get_running_loop().call_soon(self._send_ready)
        self._ready.append(way)

    def _send_ready(self) -> None:
        ready, self._ready = self._ready, []
        together: dict[str, list[_Way]] = {}
        too_old_s = asyncio.get_running_loop().time() - self._leader_wait_s
        for way in ready:
            way.lane.give_up(too_old_s)
            if not way.lane.queue:
                self._next(way)
                continue
            endpoints = self._members.endpoints(way.partition.leader, way.partition.replicas)
            if not endpoints:
                self._pause(way)
                continue
            endpoint = endpoints[way.turn % len(endpoints)]
            if way.troubled:
                self._start(endpoint, [way])
            else:
                together.setdefault(endpoint, []).append(way)
        for endpoint, ways in together.items():
            self._start(endpoint, ways)

    def _start(self, endpoint: str, ways: list[_Way]) -> None:
        task = asyncio.create_task(self._send(endpoint, ways))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, endpoint: str, ways: list[_Way]) -> None:
        """Whatever happens, each of the ways goes on: a lane that nobody serves any more would wait for ever."""
        try:
            await self._append(endpoint, ways)
        except MyQueueError as error:
            for way in ways:
                self._failed(way, error)
        except Exception as error:  # noqa: BLE001 see above
            self._log.exception("defect", endpoint=endpoint, exc_info=error)
            for way in ways:
                self._failed(way, InternalError())

    async def _append(self, endpoint: str, ways: list[_Way]) -> None:
        """Takes the ways that are served off the list."""
        parts: list[bytes] = []
        size = 0
        for place, way in enumerate(ways):
            if size > CALL_BYTES:
                self._start(endpoint, ways[place:])
                del ways[place:]
                break
            batch = way.lane.next_batch()
            parts += (internal.APPEND_ITEM.pack(len(batch)), batch)
            size += len(batch)
        age_s = asyncio.get_running_loop().time() - min(way.lane.oldest_s for way in ways)
        timeout_s = min(ATTEMPT_TIMEOUT_S, self._timeout_s - age_s)
        answers = (await self._ask(endpoint, b"".join(parts), timeout_s, ways[0].lane.under_way[0].request_id))[
            "answers"
        ]
        if len(answers) != len(ways):
            raise InternalError("the broker answered for another number of batches")
        for answer in answers:
            self._answered(ways[0], answer)
            del ways[0]

    async def _ask(self, endpoint: str, body: bytes, timeout_s: float, request_id: str | None) -> AppendAnswers:
        answer = await self._caller.call(
            internal.APPEND.method,
            endpoint + internal.APPEND.path,
            body,
            content_type=http_headers.BATCH_TYPE,
            timeout_s=timeout_s,
            request_id=request_id,
        )
        if answer.status >= 400:
            raise answer.error()
        answers: AppendAnswers = answer.json()
        return answers

    def _answered(self, way: _Way, answer: AppendAnswer | AppendFailure) -> None:
        if "error" in answer:
            self._failed(way, from_body(cast(AppendFailure, answer)["error"], 500))
            return
        way.turn, way.troubled = 0, False
        way.partition.learn_bounds(0, answer["end_offset"])
        way.lane.settle(answer)
        self._next(way)

    def _failed(self, way: _Way, error: MyQueueError) -> None:
        way.troubled = True
        if not isinstance(error, Unavailable | NotLeader | PartitionNotFound):
            way.lane.refuse(error)
            self._next(way)
            return
        way.lane.try_again(error)
        leader = error.details.get("leader") if isinstance(error, NotLeader) else None
        if leader in way.partition.replicas and leader != way.partition.leader:
            way.partition.leader = leader
            way.turn = 0
        else:
            way.turn += 1  # the next replica may know more
        self._pause(way)

    def _pause(self, way: _Way) -> None:
        """What is in the lane has waited long enough, or waits a little more."""
        loop = asyncio.get_running_loop()
        way.lane.give_up(loop.time() + RETRY_PAUSE_S - self._leader_wait_s)
        loop.call_later(RETRY_PAUSE_S, self._next, way)

    def _next(self, way: _Way) -> None:
        if way.lane.queue:
            self._make_ready(way)
        else:
            del self._ways[way.lane.topic_id, way.lane.partition_id]
