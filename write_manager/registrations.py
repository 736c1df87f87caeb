"""Producers and consumers: who may write and read, and where a new consumer starts."""

from dataclasses import dataclass

from db import catalog
from db.engine import Primary
from myqueue.protocol.errors import InvalidRequest, PastEnd, RegistrationConflict
from myqueue.protocol.limits import topic_name_problem
from myqueue.protocol.models import FromOffset, OpenProducer, RegisterConsumer, RegisterProducer
from myqueue.protocol.token import Token
from write_manager.directory import ConsumerIdentity, Directory, Topic
from write_manager.offsets import FreshOffsets
from write_manager.on_loop import OnLoop
from write_manager.topics import Topics


@dataclass(frozen=True, slots=True)
class Registered:
    id: int
    new: bool
    token: Token | None = None


@dataclass(frozen=True, slots=True)
class OpenedProducer:
    id: int
    epoch: int
    topic_id: str
    new: bool
    token: Token | None


class Registrations:
    def __init__(
        self, primary: Primary, directory: Directory, topics: Topics, offsets: FreshOffsets, on_loop: OnLoop
    ) -> None:
        self._primary = primary
        self._directory = directory
        self._topics = topics
        self._offsets = offsets
        self._on_loop = on_loop

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

    def open_producer(self, topic_name: str, request: OpenProducer) -> OpenedProducer:
        """The producer of that name, or a new one, with an epoch that nobody has had: it fences the earlier ones."""
        if problem := topic_name_problem(topic_name):
            raise InvalidRequest(problem)
        registered = self.producer(RegisterProducer(topic=topic_name, name=request.name))
        producer_id = registered.id
        with self._directory.changing(self._primary):
            topic = self._directory.topic(topic_name)
            with self._primary.transaction() as transaction:
                session = transaction.session
                epoch = catalog.next_epoch(session, producer_id)
                if epoch is None:  # all used up: the name goes on with another id
                    catalog.release_name(session, producer_id)
                    producer_id = catalog.insert_producer(session, topic_name, request.name).producer_id
                    epoch = catalog.next_epoch(session, producer_id)
            if producer_id != registered.id:
                self._directory.add_producer(producer_id, topic_name, request.name)
        assert epoch is not None
        return OpenedProducer(producer_id, epoch, str(topic.topic_id), registered.new, transaction.token)

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
        try:
            return self._on_loop.run(self._offsets.places(topic, partitions, request.start))
        except PastEnd as error:
            raise InvalidRequest(f"from: {error.message}") from error
