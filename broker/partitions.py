"""The partitions this broker holds: making, finding, repairing and dropping them."""

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

import apsw

from broker.driver import Driver
from broker.raft.configuration import NO_MEMBERS, GroupConfiguration, GroupId, MemberId, initial_configuration
from broker.raft.effects import Role
from broker.raft.snapshot import Snapshot
from broker.replica import Replica
from broker.standing import Standing
from broker.storage import groups, loading
from broker.storage.database import Database
from broker.storage.groups import Corrupted, Damaged, Group, Settings
from broker.storage.log import Log
from broker.storage.writer import Change, Round, Writer
from myqueue.protocol.errors import PartitionNotFound, RegistrationConflict, Unavailable
from myqueue.protocol.internal import BrokerTopic, MemberName, PartitionReport
from myqueue.protocol.internal import Configuration as ConfigurationReport
from service.logs import Log as Logger

T = TypeVar("T")
MakeReplica = Callable[[Log, MemberId], Replica]

_CHANGE_TIMEOUT_S = 5.0
_SLICE_BYTES = 8 << 20
_SLICES_A_SWEEP = 64


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
        """Before anything else writes. Raises Corrupted when nothing in the file can be relied on."""
        try:
            with self._database.reading() as connection:
                found = groups.load(connection)
        except apsw.CorruptError as error:
            raise Corrupted(str(error)) from error
        for group in found:
            if isinstance(group, Damaged):
                self._logger.error("partition is damaged", topic=group.settings.topic, damage=group.reason)
                with self._database.transaction() as connection:
                    again = _made_again(connection, group)
                self._add(again)
            else:
                self._load_one(group)

    def _load_one(self, group: Group) -> None:
        replica = self._add(group)
        if replica.damage is not None and not self._is_only_copy(replica):
            with self._database.transaction() as connection:
                again = _made_again(connection, group)
            self._add(again)

    def _add(self, group: Group, founders: Sequence[MemberId] = ()) -> Replica:
        """Opens what is stored; a damaged one is held without taking part in its group."""
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
            first = founders[:1] == [me]
            self._driver.ask(lambda: self._driver.open(replica.name, me, stored, replica, campaign=first))
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

    def create(self, topic_id: UUID, partition_id: int, settings: Settings, founders: list[MemberId]) -> bool:
        """False when it is here already; settings are brought up to date then.

        A replica that is here but was never taken into a group begins one when it is named among the founders.
        """
        with self._changing:
            held = self._replicas.get(GroupId(topic_id, partition_id))
            if held is not None:
                self._adjust(held, settings)
                if held.me not in founders or not self._is_vacant(held):
                    return False
                self._found(held, founders)
                return True
            own_id = self._own_id()

            def insert(round_: Round) -> Group:
                connection = round_.connection
                me = MemberId(own_id, int(self._database.incarnation, 16))
                if groups.was_held(connection, topic_id, partition_id):
                    me = MemberId(own_id, new_incarnation())
                configuration = initial_configuration(founders) if me in founders else NO_MEMBERS
                return groups.insert(connection, topic_id, partition_id, settings, me.incarnation, configuration)

            self._add(self._done(Change(insert)), founders)
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

        self._done(Change(update, uses_reserve=True))

    def _is_vacant(self, replica: Replica) -> bool:
        """It waits for a leader that takes it in: it has neither voted nor stored anything."""
        standing = self._driver.standings().get(replica.name)
        return standing is not None and standing.term == 0 and standing.configuration == NO_MEMBERS

    def _found(self, replica: Replica, founders: list[MemberId]) -> None:
        def store(round_: Round) -> Group:
            group = round_.group_of(replica.log)
            groups.store_snapshot(
                round_.connection, group.group_id, Snapshot(configuration=initial_configuration(founders))
            )
            return group

        group = self._done(Change(store))
        self._driver.ask(lambda: self._driver.close(replica.name))
        self._add(group, founders)

    def drop(self, topic_id: UUID, partition_id: int) -> None:
        """Not served from here on; its entries are deleted in slices by `sweep`."""
        with self._changing:
            replica = self.get(topic_id, partition_id)
            replica.drop()
            self._driver.ask(lambda: self._driver.close(replica.name))

            def drop(round_: Round) -> None:
                groups.drop(round_.connection, round_.group_of(replica.log).group_id, topic_id, partition_id)

            self._done(Change(drop, uses_reserve=True))
            self._replicas = {name: held for name, held in self._replicas.items() if held is not replica}

    def repair(self) -> None:
        """Damage found while reading: the replica starts again, empty and under another name."""
        for replica in self.all():
            if replica.damage is None or self._is_only_copy(replica):
                continue
            with self._changing:
                if self._replicas.get(replica.name) is not replica:
                    continue
                self._logger.error(
                    "partition is damaged and made again", topic=replica.topic, partition=replica.partition_id
                )
                self._driver.ask(lambda name=replica.name: self._driver.close(name))  # type: ignore[misc]
                self._add(self._done(_make_again(replica.log)))

    def _is_only_copy(self, replica: Replica) -> bool:
        """Nobody could give it back: it is kept as it is, for a person to look at."""
        return loading.last_known_voters(self._database, replica.log) == (replica.me,)

    def sweep(self) -> None:
        """Deletes a part of what is no longer served, a little in each transaction so that appends do not wait."""
        with self._database.reading() as connection:
            todo: list[tuple[int, int | None]] = [(group_id, None) for group_id in groups.dropped(connection)]
            todo += [
                (group.group_id, group.first_index)
                for group in (replica.log.group for replica in self.all())
                if groups.has_rows_below(connection, group)
            ]
        for _ in range(_SLICES_A_SWEEP):
            if not todo:
                return
            if self._done(_delete_slice(*todo[-1])):
                todo.pop()

    def _done(self, job: Change[T]) -> T:
        try:
            return self._writer.submit(job).result(_CHANGE_TIMEOUT_S)
        except TimeoutError:
            raise Unavailable("the broker's disk is slow", outcome="unknown") from None

    def all(self) -> list[Replica]:
        return list(self._replicas.values())

    def reports(self) -> list[PartitionReport]:
        standings = self._driver.standings()
        return [_report(replica, standings.get(replica.name)) for replica in self.all()]

    def topics(self) -> list[BrokerTopic]:
        """In order of their names; partitions in order."""
        found: dict[UUID, BrokerTopic] = {}
        for replica in sorted(self.all(), key=lambda replica: (replica.topic, replica.topic_id, replica.partition_id)):
            empty: BrokerTopic = {"topic": replica.topic, "topic_id": str(replica.topic_id), "partitions": []}
            found.setdefault(replica.topic_id, empty)["partitions"].append(replica.partition_id)
        return list(found.values())


def new_incarnation() -> int:
    return secrets.randbits(64)


def _made_again(connection: apsw.Connection, group: Group | Damaged) -> Group:
    """Under a new name: what the old one voted for or acknowledged is gone."""
    groups.drop(connection, group.group_id, group.topic_id, group.partition_id)
    return groups.insert(connection, group.topic_id, group.partition_id, group.settings, new_incarnation(), NO_MEMBERS)


def _make_again(log: Log) -> Change[Group]:
    return Change(lambda round_: _made_again(round_.connection, round_.group_of(log)), uses_reserve=True)


def _delete_slice(group_id: int, before: int | None) -> Change[bool]:
    return Change(
        lambda round_: groups.delete_slice(round_.connection, group_id, before, _SLICE_BYTES), uses_reserve=True
    )


def _report(replica: Replica, standing: Standing | None) -> PartitionReport:
    bounds = replica.bounds()
    leads = standing is not None and standing.role is Role.LEADER and standing.ready and replica.damage is None
    return {
        "topic_id": str(replica.topic_id),
        "partition_id": replica.partition_id,
        "incarnation": f"{replica.me.incarnation:016x}",
        "role": "leader" if leads else "follower" if standing is not None and standing.voter else "learner",
        "term": replica.log.group.hard.term if standing is None else standing.term,
        "configuration": _configuration(standing) if leads and standing is not None else None,
        "beginning_offset": bounds.start_offset,
        "end_offset": bounds.end_offset,
        "size_bytes": bounds.size_bytes,
    }


def _configuration(standing: Standing) -> ConfigurationReport:
    members: GroupConfiguration = standing.configuration
    return {
        "index": standing.configuration_index,
        "voters": [_name(member) for member in members.voters],
        "learners": [_name(member) for member in members.learners],
    }


def _name(member: MemberId) -> MemberName:
    return {"broker_id": member.broker_id, "incarnation": f"{member.incarnation:016x}"}
