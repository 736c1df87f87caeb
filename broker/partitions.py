"""The partitions of this broker: creating, finding, repairing and dropping their replicas."""

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

import apsw

from broker.driver import Driver
from broker.raft.configuration import NO_MEMBERS, GroupId, MemberId, initial_configuration
from broker.raft.snapshot import Snapshot
from broker.replica import Replica
from broker.replica_status import report_of
from broker.storage import groups, loading
from broker.storage.database import Database
from broker.storage.groups import Corrupted, Damaged, Group, Settings
from broker.storage.log import Log
from broker.storage.writer import Change, Round, Writer
from myqueue.protocol.errors import PartitionNotFound, RegistrationConflict, Unavailable
from myqueue.protocol.internal import BrokerTopic, PartitionReport
from service.logs import Log as Logger

T = TypeVar("T")
MakeReplica = Callable[[Log, MemberId], Replica]

_CHANGE_TIMEOUT_S = 5.0
_SLICE_BYTES = 8 << 20
_SLICES_PER_SWEEP = 64


class Partitions:
    def __init__(self, database: Database, writer: Writer, driver: Driver, make: MakeReplica, logger: Logger) -> None:
        self._database = database
        self._writer = writer
        self._driver = driver
        self._make = make
        self._logger = logger
        self._replicas: dict[GroupId, Replica] = {}
        self._changing = threading.Lock()

    def load(self) -> None:
        """Before anything else writes. Raises Corrupted when the whole file is unreliable."""
        try:
            with self._database.reading() as connection:
                found = groups.load(connection)
        except apsw.CorruptError as error:
            raise Corrupted(str(error)) from error
        for group in found:
            if isinstance(group, Damaged):
                self._logger.error("partition is damaged", topic=group.settings.topic, damage=group.reason)
                with self._database.transaction() as connection:
                    recreated = _recreated(connection, group)
                self._add(recreated)
            else:
                self._load_one(group)

    def _load_one(self, group: Group) -> None:
        replica = self._add(group)
        if replica.damage is not None and not self._is_only_copy(replica):
            with self._database.transaction() as connection:
                recreated = _recreated(connection, group)
            self._add(recreated)

    def _add(self, group: Group, initial_voters: Sequence[MemberId] = ()) -> Replica:
        """Open the stored replica; a damaged one is quarantined: held, but not opened in its group."""
        log = Log(self._database, group)
        me = MemberId(self._own_id(), group.incarnation)
        replica = self._make(log, me)
        self._replicas = {**self._replicas, replica.name: replica}
        try:
            stored = loading.load(self._database, log)
        except Corrupted as error:
            replica.found_damage(str(error))
            self._logger.exception("partition is damaged", topic=replica.topic, partition=replica.partition_id)
        else:
            first = initial_voters[:1] == [me]
            self._driver.call(lambda: self._driver.open(replica.name, me, stored, replica, campaign=first))
        return replica

    def _own_id(self) -> int:
        broker_id = self._driver.broker_id
        if broker_id is None:
            raise Unavailable("the broker has no id yet: it is not registered", outcome="not_written")
        return broker_id

    def get(self, topic_id: UUID, partition_id: int) -> Replica:
        replica = self._replicas.get(GroupId(topic_id, partition_id))
        if replica is None:
            raise PartitionNotFound()
        return replica

    def create(self, topic_id: UUID, partition_id: int, settings: Settings, initial_voters: list[MemberId]) -> bool:
        """False when it is here already; its settings are updated then.

        A replica that is here but was never part of a group starts one when it is named among the initial voters.
        """
        with self._changing:
            held = self._replicas.get(GroupId(topic_id, partition_id))
            if held is not None:
                self._adjust(held, settings)
                if held.me not in initial_voters or not self._is_vacant(held):
                    return False
                self._start_group(held, initial_voters)
                return True
            own_id = self._own_id()

            def insert(round_: Round) -> Group:
                connection = round_.connection
                me = MemberId(own_id, int(self._database.incarnation, 16))
                if groups.was_held(connection, topic_id, partition_id):
                    me = MemberId(own_id, new_incarnation())
                configuration = initial_configuration(initial_voters) if me in initial_voters else NO_MEMBERS
                return groups.insert(connection, topic_id, partition_id, settings, me.incarnation, configuration)

            self._add(self._write(Change(insert)), initial_voters)
        return True

    def _adjust(self, held: Replica, settings: Settings) -> None:
        if held.topic != settings.topic:
            raise RegistrationConflict(f"the partition belongs to topic {held.topic}")
        if held.log.group.settings == settings:
            return

        def update(round_: Round) -> None:
            group = replace(round_.group_of(held.log), settings=settings)
            groups.update(round_.connection, group)
            round_.set_group(held.log, group)

        self._write(Change(update, uses_reserve=True))

    def _is_vacant(self, replica: Replica) -> bool:
        """It waits for a leader to add it: it has neither voted nor stored anything."""
        status = self._driver.statuses().get(replica.name)
        return status is not None and status.term == 0 and status.configuration == NO_MEMBERS

    def _start_group(self, replica: Replica, initial_voters: list[MemberId]) -> None:
        def store(round_: Round) -> Group:
            group = round_.group_of(replica.log)
            groups.store_snapshot(
                round_.connection, group.group_id, Snapshot(configuration=initial_configuration(initial_voters))
            )
            return group

        group = self._write(Change(store))
        self._driver.call(lambda: self._driver.close(replica.name))
        self._add(group, initial_voters)

    def drop(self, topic_id: UUID, partition_id: int) -> None:
        """Not served from here on; its entries are deleted in slices by `sweep`."""
        with self._changing:
            replica = self.get(topic_id, partition_id)
            replica.drop()
            self._driver.call(lambda: self._driver.close(replica.name))

            def drop(round_: Round) -> None:
                groups.drop(round_.connection, round_.group_of(replica.log).group_id, topic_id, partition_id)

            self._write(Change(drop, uses_reserve=True))
            self._replicas = {name: held for name, held in self._replicas.items() if held is not replica}

    def repair(self) -> None:
        """Replace replicas with damage found while reading: each starts again, empty and under a new incarnation."""
        for replica in self.all():
            if replica.damage is None or self._is_only_copy(replica):
                continue
            with self._changing:
                if self._replicas.get(replica.name) is not replica:
                    continue
                self._logger.error(
                    "partition is damaged and made again", topic=replica.topic, partition=replica.partition_id
                )
                self._driver.call(lambda name=replica.name: self._driver.close(name))  # type: ignore[misc]
                self._add(self._write(_recreate(replica.log)))

    def rebuild(self, topic_id: UUID, partition_id: int, incarnation: int) -> None:
        """The group has removed this damaged member: it starts again, empty and under a new incarnation."""
        with self._changing:
            replica = self.get(topic_id, partition_id)
            if replica.damage is None or replica.me.incarnation != incarnation:
                raise RegistrationConflict("the replica is not damaged, or of another incarnation")
            self._driver.call(lambda: self._driver.close(replica.name))
            self._add(self._write(_recreate(replica.log)))

    def _is_only_copy(self, replica: Replica) -> bool:
        """No other replica could restore it: it stays quarantined, for an operator to inspect."""
        return loading.last_known_voters(self._database, replica.log) == (replica.me,)

    def sweep(self) -> None:
        """Delete entries that are no longer served, in small transactions so that appends do not wait."""
        with self._database.reading() as connection:
            todo: list[tuple[int, int | None]] = [(group_id, None) for group_id in groups.dropped(connection)]
            todo += [
                (group.group_id, group.first_index)
                for group in (replica.log.group for replica in self.all())
                if groups.has_rows_below(connection, group)
            ]
        for _ in range(_SLICES_PER_SWEEP):
            if not todo:
                return
            if self._write(_delete_slice(*todo[-1])):
                todo.pop()

    def _write(self, job: Change[T]) -> T:
        try:
            return self._writer.submit(job).result(_CHANGE_TIMEOUT_S)
        except TimeoutError:
            raise Unavailable("the broker's disk is slow", outcome="unknown") from None

    def all(self) -> list[Replica]:
        return list(self._replicas.values())

    def reports(self) -> list[PartitionReport]:
        statuses = self._driver.statuses()
        return [report_of(replica, statuses.get(replica.name)) for replica in self.all()]

    def topics(self) -> list[BrokerTopic]:
        """Ordered by topic name; partitions in order."""
        found: dict[UUID, BrokerTopic] = {}
        for replica in sorted(self.all(), key=lambda replica: (replica.topic, replica.topic_id, replica.partition_id)):
            empty: BrokerTopic = {"topic": replica.topic, "topic_id": str(replica.topic_id), "partitions": []}
            found.setdefault(replica.topic_id, empty)["partitions"].append(replica.partition_id)
        return list(found.values())


def new_incarnation() -> int:
    return secrets.randbits(64)


def _recreated(connection: apsw.Connection, group: Group | Damaged) -> Group:
    """Under a new incarnation: the votes and acknowledgements of the old one are lost."""
    groups.drop(connection, group.group_id, group.topic_id, group.partition_id)
    return groups.insert(connection, group.topic_id, group.partition_id, group.settings, new_incarnation(), NO_MEMBERS)


def _recreate(log: Log) -> Change[Group]:
    return Change(lambda round_: _recreated(round_.connection, round_.group_of(log)), uses_reserve=True)


def _delete_slice(group_id: int, before: int | None) -> Change[bool]:
    return Change(
        lambda round_: groups.delete_slice(round_.connection, group_id, before, _SLICE_BYTES), uses_reserve=True
    )
