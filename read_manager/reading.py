"""The read manager's use cases: list_topics, list_partitions, dequeue, size."""

import threading
import time

from db import catalog as stored
from db.engine import Standby
from myqueue.protocol import batch as wire
from myqueue.protocol import internal
from myqueue.protocol.errors import (
    ConsumerNotFound,
    MyQueueError,
    NoLeader,
    NoTopics,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
    Unavailable,
)
from myqueue.protocol.internal import Claim, Cursor
from myqueue.protocol.limits import MAX_WAIT_MS
from myqueue.protocol.marks import decode_marks
from myqueue.protocol.models import Consume, Consumed, Partition, PartitionList, Size
from myqueue.protocol.token import Token
from read_manager.catalog import Catalog
from read_manager.offsets import PartitionOffsets
from read_manager.write_manager_calls import WriteManagerCalls
from service.calls import Caller
from service.logs import Log

RETRY_PAUSE_S = 0.03
ATTEMPT_TIMEOUT_S = 0.5  # a replica that hangs must leave time to ask another
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.25


class Listing:
    def __init__(self, catalog: Catalog, offsets: PartitionOffsets) -> None:
        self._catalog = catalog
        self._offsets = offsets

    def topics(self, token: Token | None) -> list[str]:
        names = self._catalog.topics(token)
        if not names:
            raise NoTopics()
        return names

    def partitions(self, name: str, token: Token | None) -> PartitionList:
        """Offsets as the leaders say; of a partition without leader, as last reported."""
        topic = self._catalog.topic(name, token)
        fresh = self._offsets.ask(topic, range(len(topic["partitions"])))
        rows = []
        for record in topic["partitions"]:
            said = fresh.get(record["partition_id"])
            known = record if said is None else said
            rows.append(
                Partition(
                    partition_id=record["partition_id"],
                    leader=None if said is None else said["leader"],
                    replicas=record["replicas"],
                    term=known["term"],
                    beginning_offset=known["beginning_offset"],
                    end_offset=known["end_offset"],
                    size=known["end_offset"] - known["beginning_offset"],
                    size_bytes=known["size_bytes"],
                )
            )
        return PartitionList(topic=name, partitions=rows)


class Sizes:
    def __init__(
        self, catalog: Catalog, offsets: PartitionOffsets, write_manager: WriteManagerCalls, standby: Standby
    ) -> None:
        self._catalog = catalog
        self._offsets = offsets
        self._write_manager = write_manager
        self._standby = standby

    def size(self, request: Size) -> int:
        cursors = self._cursors(request)
        try:
            topic = self._catalog.topic(request.topic)
        except TopicNotFound:
            raise ConsumerNotFound() from None
        fresh = self._offsets.require(topic, [cursor["partition_id"] for cursor in cursors])
        unread = 0
        for cursor in cursors:
            offsets = fresh[cursor["partition_id"]]
            unread += max(0, offsets["end_offset"] - max(cursor["offset"], offsets["beginning_offset"]))
            unread += cursor["given_back"]
        return unread

    def _cursors(self, request: Size) -> list[Cursor]:
        """The write manager decides cursors, so it knows best; while it is away, the last stored ones serve."""
        try:
            answer = self._write_manager.cursors(request.consumer_id)
        except Unavailable:
            with self._standby.reading() as session:
                consumer = stored.consumer(session, request.consumer_id)
                if consumer is None or consumer.topic_name != request.topic:
                    raise
                return [
                    {"partition_id": row.partition_id, "offset": row.offset, "given_back": len(row.given_back)}
                    for row in stored.cursors(session, request.consumer_id)
                ]
        if answer["topic"] != request.topic:
            raise ConsumerNotFound()
        return answer["cursors"]


class Dequeue:
    """A claim at the write manager, then the message from the broker; a message that cannot be had is given back."""

    def __init__(
        self, write_manager: WriteManagerCalls, caller: Caller, log: Log, *, leader_wait_s: float, max_waiters: int
    ) -> None:
        self._write_manager = write_manager
        self._caller = caller
        self._log = log
        self._leader_wait_s = leader_wait_s
        self._waiters = threading.Semaphore(max_waiters)

    def next_message(self, request: Consume, identity: str) -> tuple[Consumed, str | None] | None:
        """The message and a session token; None when there is nothing to read."""
        claim, token = self._claim(request, identity)
        if claim is None and request.wait_ms and self._waiters.acquire(blocking=False):
            try:
                claim, token = self._wait(request, identity)
            finally:
                self._waiters.release()
        while claim is not None:
            try:
                return self._fetch(claim), token
            except OffsetOutOfRange as error:
                # Retention was faster. Once the write manager knows, the next claim lies behind what is gone.
                self._give_back(request.consumer_id, identity, claim, error.details.get("beginning_offset"))
                claim, token = self._claim(request, identity)
            except MyQueueError:
                self._give_back(request.consumer_id, identity, claim, None)
                raise
        return None

    def _wait(self, request: Consume, identity: str) -> tuple[Claim | None, str | None]:
        deadline_s = time.monotonic() + min(request.wait_ms, MAX_WAIT_MS) / 1000
        pause_s = FIRST_PAUSE_S
        while (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
            claim, token = self._claim(request, identity)
            if claim is not None:
                return claim, token
        return None, None

    def _claim(self, request: Consume, identity: str) -> tuple[Claim | None, str | None]:
        answer = self._write_manager.claim(
            {
                "topic": request.topic,
                "consumer_id": request.consumer_id,
                "partition_id": request.partition_id,
                "identity": identity,
            }
        )
        return answer["claim"], answer["token"]

    def _fetch(self, claim: Claim) -> Consumed:
        """From the leader, or from any replica that has it: what is committed is the same everywhere."""
        path = internal.MESSAGES.format(topic_id=claim["topic_id"], partition_id=claim["partition_id"])
        deadline_s = time.monotonic() + self._leader_wait_s
        turn = 0
        while True:
            try:
                if not claim["endpoints"]:
                    raise NoLeader()
                endpoint = claim["endpoints"][turn % len(claim["endpoints"])]
                url = f"{endpoint}{path}?offset={claim['offset']}&limit=1"
                data = self._caller.raw("GET", url, timeout_s=ATTEMPT_TIMEOUT_S)
                if not data:
                    raise NoLeader("no replica that answers has the message yet")
                break
            except (Unavailable, PartitionNotFound) as error:
                turn += 1
                if not claim["endpoints"] or time.monotonic() + RETRY_PAUSE_S > deadline_s:
                    raise NoLeader(retry_after_s=1) from error
                time.sleep(RETRY_PAUSE_S)
        header, body, rest = wire.split(data)
        wire.check_body(header, body)
        message = wire.messages_of(wire.decode_body(body))[0]
        marks = decode_marks(rest, header.count)
        producer_id = marks[0].producer_id if marks else header.producer_id
        return Consumed(
            message=message.value,
            key=message.key,
            partition_id=claim["partition_id"],
            offset=header.base_offset,
            timestamp=message.timestamp,
            producer_id=None if producer_id == wire.NO_PRODUCER else producer_id,
        )

    def _give_back(self, consumer_id: int, identity: str, claim: Claim, beginning_offset: int | None) -> None:
        try:
            self._write_manager.give_back(
                {
                    "consumer_id": consumer_id,
                    "identity": identity,
                    "attempt": claim["attempt"],
                    "beginning_offset": beginning_offset,
                }
            )
        except MyQueueError as error:
            # The claim stays under its identity: a retry of the same request still gets the message.
            self._log.warning(
                "claim not given back", consumer_id=consumer_id, offset=claim["offset"], why=error.message
            )
