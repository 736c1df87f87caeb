"""Producers and consumers: who may write and read, and where a new consumer starts."""

from dataclasses import dataclass

from db import catalog
from db.engine import Primary
from myqueue.protocol.errors import InvalidRequest, RegistrationConflict
from myqueue.protocol.models import FromOffset, FromTimestamp, RegisterConsumer, RegisterProducer
from myqueue.protocol.token import Token
from write_manager.directory import ConsumerIdentity, Directory, Topic
from write_manager.offsets import FreshOffsets
from write_manager.topics import Topics


@dataclass(frozen=True, slots=True)
class Registered:
    id: int
    new: bool
    token: Token | None = None


class Registrations:
    def __init__(self, primary: Primary, directory: Directory, topics: Topics, offsets: FreshOffsets) -> None:
        self._primary = primary
        self._directory = directory
        self._topics = topics
        self._offsets = offsets

    def producer(self, request: RegisterProducer) -> Registered:
        with self._directory.changing(self._primary):
            if request.name is not None:
                known = self._directory.producer_names.get((request.topic, request.name))
                if known is not None:
                    return Registered(known, new=False)
            self._topics.ensure(request.topic)
            with self._primary.transaction() as transaction:
                producer = catalog.insert_producer(transaction.session, request.topic, request.name)
            self._directory.add_producer(producer.producer_id, producer.topic_name, producer.name)
        return Registered(producer.producer_id, new=True, token=transaction.token)

    def consumer(self, request: RegisterConsumer) -> Registered:
        topic = self._directory.topic(request.topic)
        if request.partition_id is not None:
            topic.partition(request.partition_id)
        if isinstance(request.start, FromOffset) and request.partition_id is None:
            raise InvalidRequest("from: an offset needs a partition_id")
        with self._directory.changing(self._primary):
            if request.name is not None:
                known = self._directory.consumer_names.get((request.topic, request.name))
                if known is not None:
                    return self._again(known, request)
            cursors = self._start_offsets(topic, request)
            with self._primary.transaction() as transaction:
                row = catalog.insert_consumer(
                    transaction.session, request.topic, request.name, request.partition_id, cursors
                )
            self._directory.add_consumer(ConsumerIdentity(row.consumer_id, row.topic_name, row.name, row.partition_id))
        return Registered(row.consumer_id, new=True, token=transaction.token)

    def _again(self, known: ConsumerIdentity, request: RegisterConsumer) -> Registered:
        if known.partition_id != request.partition_id:
            raise RegistrationConflict(
                f"consumer {request.name!r} is registered for "
                + ("the whole topic" if known.partition_id is None else f"partition {known.partition_id}")
            )
        return Registered(known.consumer_id, new=False)

    def _start_offsets(self, topic: Topic, request: RegisterConsumer) -> dict[int, int]:
        partitions = topic.partition_ids if request.partition_id is None else [request.partition_id]
        start = request.start
        timestamp = start.timestamp if isinstance(start, FromTimestamp) else None
        found = self._offsets.require(topic, partitions, timestamp)
        if isinstance(start, FromOffset):
            for offsets in found.values():
                if start.offset > offsets["end_offset"]:
                    raise InvalidRequest(f"from: offset {start.offset} is past the end, {offsets['end_offset']}")
            return {p: max(start.offset, offsets["beginning_offset"]) for p, offsets in found.items()}
        if isinstance(start, FromTimestamp):
            return {p: o["end_offset"] if o["offset_at"] is None else o["offset_at"] for p, o in found.items()}
        end = "beginning_offset" if start == "earliest" else "end_offset"
        return {p: o["beginning_offset"] if end == "beginning_offset" else o["end_offset"] for p, o in found.items()}
