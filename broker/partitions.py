"""The partitions this broker holds: making, finding and dropping them."""

import threading
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

import apsw

from broker.replica import Replica
from broker.storage import log as logs
from broker.storage.database import Database, StorageRefused
from broker.storage.log import Group
from broker.storage.writer import Change, Writer
from myqueue.protocol.errors import PartitionNotFound, RegistrationConflict, Unavailable
from myqueue.protocol.internal import BrokerTopic, PartitionReport
from service.logs import Log as Logger

T = TypeVar("T")

_CHANGE_TIMEOUT_S = 5.0
_SLICE_BYTES = 8 << 20
_SLICES_A_SWEEP = 64


class Partitions:
    def __init__(self, database: Database, writer: Writer, make: Callable[[Group], Replica], logger: Logger) -> None:
        self._database = database
        self._writer = writer
        self._make = make
        self._logger = logger
        self._replicas: dict[tuple[UUID, int], Replica] = {}
        self._changing = threading.Lock()

    def load(self) -> None:
        try:
            with self._database.reading() as connection:
                groups = logs.load_groups(connection)
        except apsw.CorruptError as error:
            raise StorageRefused(f"{self._database.path} is damaged: {error}") from error
        for group in groups:
            self._add(group)

    def _add(self, group: Group) -> None:
        replica = self._make(group)
        damage = replica.load()
        if damage is not None:
            self._logger.error(
                "partition is damaged and not served", topic=group.topic, partition=group.partition_id, damage=damage
            )
        self._replicas = {**self._replicas, (group.topic_id, group.partition_id): replica}

    def get(self, topic_id: UUID, partition_id: int) -> Replica:
        replica = self._replicas.get((topic_id, partition_id))
        if replica is None:
            raise PartitionNotFound()
        return replica

    def create(self, topic_id: UUID, partition_id: int, topic: str) -> bool:
        """False when it is here already."""
        with self._changing:
            held = self._replicas.get((topic_id, partition_id))
            if held is not None:
                if held.topic != topic:
                    raise RegistrationConflict(f"the partition belongs to topic {held.topic}")
                return False
            job = Change(lambda connection: logs.insert_group(connection, topic_id, partition_id, topic))
            self._add(self._done(job))
        return True

    def drop(self, topic_id: UUID, partition_id: int) -> None:
        """Not served from here on; its entries are deleted in slices by `sweep`."""
        with self._changing:
            replica = self.get(topic_id, partition_id)
            replica.drop()
            self._done(Change(lambda connection: logs.mark_dropped(connection, replica.group_id), uses_reserve=True))
            self._replicas = {name: held for name, held in self._replicas.items() if held is not replica}

    def sweep(self) -> None:
        """Deletes a part of what dropped partitions left, a little in each transaction so that appends do not wait."""
        with self._database.reading() as connection:
            dropped = logs.dropped_groups(connection)
        for _ in range(_SLICES_A_SWEEP):
            if not dropped:
                return
            if self._done(_delete_slice(dropped[-1])):
                dropped.pop()

    def _done(self, job: Change[T]) -> T:
        try:
            return self._writer.submit(job).result(_CHANGE_TIMEOUT_S)
        except TimeoutError:
            raise Unavailable("the broker's disk is slow", outcome="unknown") from None

    def all(self) -> list[Replica]:
        return list(self._replicas.values())

    def reports(self) -> list[PartitionReport]:
        return [replica.report() for replica in self.all()]

    def topics(self) -> list[BrokerTopic]:
        """In order of their names; partitions in order."""
        found: dict[UUID, BrokerTopic] = {}
        for replica in sorted(self.all(), key=lambda replica: (replica.topic, replica.topic_id, replica.partition_id)):
            empty: BrokerTopic = {"topic": replica.topic, "topic_id": str(replica.topic_id), "partitions": []}
            found.setdefault(replica.topic_id, empty)["partitions"].append(replica.partition_id)
        return list(found.values())


def _delete_slice(group_id: int) -> Change[bool]:
    return Change(lambda connection: logs.delete_slice(connection, group_id, _SLICE_BYTES), uses_reserve=True)
