"""The partitions of this broker: creating, finding, rebuilding and dropping their replicas."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from broker.command_fence import KnownReplica, delete_refusal
from broker.driver import Driver
from broker.raft.configuration import NO_MEMBERS, GroupId, MemberId, initial_configuration
from broker.raft.events import StopLeading
from broker.raft.snapshot import HardState
from broker.replica import Replica
from broker.replica_status import report_of
from broker.storage.disk import DiskError
from broker.storage.entry import Corrupted
from broker.storage.group import Group, Settings, SnapshotState
from broker.storage.partition_log import PartitionLog
from broker.storage.replay import is_only_voter, stored_replica
from broker.storage.round import Round
from broker.storage.store import Store, new_incarnation
from broker.storage.writer import Change, Writer
from myqueue.protocol.errors import PartitionNotFound, RegistrationConflict, Unavailable
from myqueue.protocol.internal import BrokerTopic, PartitionReport
from service.logs import Log as Logger

T = TypeVar("T")
MakeReplica = Callable[[PartitionLog, MemberId], Replica]

_CHANGE_TIMEOUT_S = 5.0


class Partitions:
    def __init__(self, store: Store, writer: Writer, driver: Driver, make: MakeReplica, logger: Logger) -> None:
        self._store = store
        self._writer = writer
        self._driver = driver
        self._make = make
        self._logger = logger
        self._replicas: dict[GroupId, Replica] = {}
        self._changing = threading.Lock()
        self._is_serving = False
        self._outside: dict[GroupId, tuple[MemberId, ...]] = {}  # take no part in their group yet; its initial voters
        self.on_damage: Callable[[], None] = lambda: None  # reports change; must not block

    # Start

    def load(self) -> None:
        """Hold every stored replica; none of them takes part in its group before `serve`."""
        for log in self._store.logs.values():
            self._join(self._hold(log))

    def serve(self) -> None:
        """This folder is confirmed as the newest one of this broker: the replicas join their groups.

        Called now and then: one that could not be read, or had to wait for the disk, joins later.
        """
        with self._changing:
            self._is_serving = True
            for name in list(self._outside):
                self._join_if_readable(self._replicas[name])

    def refute(self, reason: str) -> None:
        """This folder is an older copy: its replicas may have promised what it does not hold."""
        with self._changing:
            replicas = self.all()
            self._outside.clear()  # also if what follows fails: none of them may take part again
            self._driver.call(lambda: self._driver.close_all([replica.name for replica in replicas]))

            def change(round_: Round) -> None:
                for replica in replicas:
                    _set_suspect(round_, replica.log, reason)
                self._store.renew_incarnation(round_)

            self._write(Change(change, uses_reserve=True))
            for replica in replicas:
                replica.damage = reason
            self.on_damage()

    def _hold(self, log: PartitionLog) -> Replica:
        me = MemberId(self._own_id(), log.group.incarnation)
        replica = self._make(log, me)
        replica.on_damage = self._found_damage
        self._replicas = {**self._replicas, replica.name: replica}
        self._show(replica)
        return replica

    def _show(self, replica: Replica) -> None:
        """Committed messages are served before the group has a leader, and when this replica is suspect."""
        log = replica.log
        try:
            last = log.tail.next_index - 1
            if replica.votes or not is_only_voter(log):  # of a group of one everything is committed
                last = min(log.group.hard.commit, last)
            last = max(last, log.group.first_index - 1)
            replica.show_stored(last, log.tail_at(last).end_offset)
        except Corrupted as error:
            replica.found_damage(str(error))
        except DiskError as error:
            self._logger.warning("a partition cannot be read", topic=replica.topic, why=str(error))

    def _join(self, replica: Replica, initial_voters: Sequence[MemberId] = ()) -> None:
        """At once when the folder is confirmed, else when it is."""
        self._outside[replica.name] = tuple(initial_voters)
        if self._is_serving:
            self._join_if_readable(replica)

    def _join_if_readable(self, replica: Replica) -> None:
        try:
            self._open(replica, self._outside[replica.name])
        except (DiskError, Unavailable) as error:
            self._logger.warning("a replica waits", topic=replica.topic, why=str(error))
        else:
            self._outside.pop(replica.name, None)

    def _open(self, replica: Replica, initial_voters: Sequence[MemberId]) -> None:
        if not replica.votes:
            return
        try:
            stored, damage = stored_replica(self._store.disk, replica.log)
        except Corrupted as error:
            self._suspect(replica, str(error))
            return
        first = tuple(initial_voters[:1]) == (replica.me,)
        self._driver.call(lambda: self._driver.open(replica.name, replica.me, stored, replica, campaign=first))
        if damage is not None:
            replica.found_damage(damage)
        if replica.damage is not None:
            self._driver.submit(replica.name, StopLeading())

    def _own_id(self) -> int:
        broker_id = self._driver.broker_id
        if broker_id is None:
            raise Unavailable("the broker has no id yet: it is not registered", outcome="not_written")
        return broker_id

    # Damage

    def damaged(self, log: PartitionLog, what: str) -> None:
        """Found by upkeep, on its thread."""
        for replica in self.all():
            if replica.log is log:
                replica.found_damage(what)

    def _found_damage(self, replica: Replica, what: str) -> None:
        """Its Raft state is sound: it votes on, so that a group of two can elect, but another replica leads."""
        self._logger.error("partition is damaged", topic=replica.topic, partition=replica.partition_id, damage=what)
        self._driver.submit(replica.name, StopLeading())
        self._submit_state(replica.log, lambda group: replace(group, damage=what))
        self.on_damage()

    def _suspect(self, replica: Replica, reason: str) -> None:
        self._logger.error("replica is suspect", topic=replica.topic, partition=replica.partition_id, why=reason)
        replica.damage = reason
        self._write(Change(lambda round_: _set_suspect(round_, replica.log, reason), uses_reserve=True))
        self.on_damage()

    def _submit_state(self, log: PartitionLog, changed: Callable[[Group], Group]) -> None:
        def change(round_: Round) -> None:
            if log.group.group_id in self._store.logs:
                round_.set_group(log, changed(round_.group_of(log)))

        self._writer.submit(Change(change, uses_reserve=True))

    def rebuild(self, topic_id: UUID, partition_id: int, incarnation: int) -> None:
        """Its group has removed the damaged replica: it starts again, empty, as another member.

        The old files are kept aside until the group has taken in the new member.
        """
        with self._changing:
            replica = self.get(topic_id, partition_id)
            if replica.damage is None or replica.me.incarnation != incarnation:
                raise RegistrationConflict("the replica is not damaged, or is another member")
            self._driver.call(lambda: self._driver.close(replica.name))
            old = replica.log

            def recreate(round_: Round) -> PartitionLog:
                self._store.drop_log(round_, old, aside=f"{_aside_prefix(replica.name)}{incarnation:016x}")
                group = round_.group_of(old)
                return self._open_log(round_, topic_id, partition_id, group.settings, new_incarnation(), ())

            self._join(self._hold(self._write(Change(recreate, uses_reserve=True))))

    def remove_aside(self) -> None:
        """Delete what was kept aside once the new replica is a voter of its group, or its topic is deleted."""
        names = self._store.kept_aside()
        if not names:
            return
        statuses = self._driver.statuses()
        for replica in self.all():
            status = statuses.get(replica.name)
            is_taken_in = status is not None and replica.me in status.configuration.voters
            if is_taken_in and replica.damage is None:
                self._remove_aside(replica.name, names)

    def _remove_aside(self, name: GroupId, names: list[str]) -> None:
        for kept in names:
            if kept.startswith(_aside_prefix(name)):
                self._store.remove_aside(kept)

    # Commands

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

            def insert(round_: Round) -> PartitionLog:
                me = MemberId(own_id, int(self._store.incarnation, 16))
                if self._store.was_held(topic_id, partition_id):
                    me = MemberId(own_id, new_incarnation())
                voters = initial_voters if me in initial_voters else ()
                return self._open_log(round_, topic_id, partition_id, settings, me.incarnation, voters)

            self._join(self._hold(self._write(Change(insert))), initial_voters)
        return True

    def _open_log(
        self,
        round_: Round,
        topic_id: UUID,
        partition_id: int,
        settings: Settings,
        incarnation: int,
        initial_voters: Sequence[MemberId],
    ) -> PartitionLog:
        """A new replica without entries, or the one whose making was given up before it was seen."""
        held = self._replicas.get(GroupId(topic_id, partition_id))
        for log in self._store.logs.values():
            is_it = (log.group.topic_id, log.group.partition_id) == (topic_id, partition_id)
            if is_it and (held is None or held.log is not log):
                return log
        configuration = initial_configuration(initial_voters) if initial_voters else NO_MEMBERS
        group = Group(
            self._store.new_group_id(),
            topic_id,
            partition_id,
            incarnation,
            settings,
            HardState(),
            snapshot=SnapshotState(configuration=configuration),
        )
        return self._store.open_log(round_, group)

    def _adjust(self, held: Replica, settings: Settings) -> None:
        if held.topic != settings.topic:
            raise RegistrationConflict(f"the partition belongs to topic {held.topic}")
        if held.log.group.settings == settings:
            return

        def update(round_: Round) -> None:
            round_.set_group(held.log, replace(round_.group_of(held.log), settings=settings))

        self._write(Change(update, uses_reserve=True))

    def _is_vacant(self, replica: Replica) -> bool:
        """It waits for a leader to add it: it has neither voted nor stored anything."""
        status = self._driver.statuses(replica.name).get(replica.name)
        return status is not None and status.term == 0 and status.configuration == NO_MEMBERS

    def _start_group(self, replica: Replica, initial_voters: list[MemberId]) -> None:
        def store(round_: Round) -> None:
            snapshot = SnapshotState(configuration=initial_configuration(initial_voters))
            round_.set_group(replica.log, replace(round_.group_of(replica.log), snapshot=snapshot))

        # First closed: what it owes the disk is written before the state it is opened with again.
        self._driver.call(lambda: self._driver.close(replica.name))
        self._outside[replica.name] = ()
        self._write(Change(store))
        self._join(self._hold(replica.log), initial_voters)

    def drop(self, topic_id: UUID, partition_id: int, known: KnownReplica | None = None) -> None:
        """Not served from here on; upkeep unlinks its files at once.

        Refused when the replica is another one than `known`, which is what the write manager decided on.
        """
        with self._changing:
            replica = self.get(topic_id, partition_id)

            def close() -> None:
                """Check and close in one turn of the loop: no entry comes in between."""
                if known is not None:
                    self._check_known(replica, known)
                replica.drop()
                self._driver.close(replica.name)

            self._driver.call(close)
            self._write(Change(lambda round_: self._store.drop_log(round_, replica.log), uses_reserve=True))
            self._replicas = {name: held for name, held in self._replicas.items() if held is not replica}
            self._outside.pop(replica.name, None)
            self._remove_aside(replica.name, self._store.kept_aside())

    def _check_known(self, replica: Replica, known: KnownReplica) -> None:
        """A replica that takes no part in its group, because it is suspect, has no configuration to compare."""
        status = self._driver.statuses(replica.name).get(replica.name)
        index, configuration = (0, NO_MEMBERS) if status is None else (status.newest_index, status.newest)
        refusal = delete_refusal(replica.me, known, index, configuration)
        if refusal is not None:
            raise RegistrationConflict(refusal)

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


def _set_suspect(round_: Round, log: PartitionLog, reason: str) -> None:
    round_.set_group(log, replace(round_.group_of(log), suspect=reason))


def _aside_prefix(name: GroupId) -> str:
    return f"{name.topic}-{name.partition}-"
