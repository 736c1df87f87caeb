"""The reconciler: makes brokers match the catalog, one step per partition and round.

It creates missing replicas, updates their retention, rebuilds damaged ones, reconfigures Raft groups, transfers
leadership to the preferred leader, adds replicas to partitions that have too few, restarts partitions that lost all
data, and deletes replicas of deleted topics. Every step may fail and is decided anew in the next round. A topic that
fails keeps no other one from its steps.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

from db import catalog, cursors
from db.catalog import Voter
from db.primary import Primary
from myqueue.protocol import internal
from myqueue.protocol.errors import MetadataUnavailable, MyQueueError, PartitionNotFound, Unavailable
from myqueue.protocol.internal import DeletePartition, InternalRoute, RebuildPartition
from service.logs import Log
from write_manager.broker_commands import BrokerCommands
from write_manager.brokers import Brokers, ReplicasByBroker
from write_manager.heartbeats import Heartbeats
from write_manager.metadata_cache import CachedPartition, CachedTopic, MetadataCache
from write_manager.reconfiguration import ReportedReplica, is_rebuildable, new_initial_voters, next_change
from write_manager.topics import Topics

# A leadership transfer costs its partition a moment: not all of them at once.
TRANSFERS_PER_ROUND = 4
# Time of a round for steps that PostgreSQL has to store: while it is away each of them waits for it.
STORING_S = 5.0


class Reconciler:
    def __init__(
        self,
        primary: Primary,
        cache: MetadataCache,
        brokers: Brokers,
        heartbeats: Heartbeats,
        topics: Topics,
        commands: BrokerCommands,
        log: Log,
        *,
        timeout_s: float,
        settle_s: float,
        restart_cursors: Callable[[UUID, int], None] = lambda *_: None,
    ) -> None:
        """`restart_cursors` sets the cursors in memory to 0 for a partition whose log restarts."""
        self._primary = primary
        self._cache = cache
        self._brokers = brokers
        self._heartbeats = heartbeats
        self._topics = topics
        self._commands = commands
        self._log = log
        self._timeout_s = timeout_s
        self._settle_s = settle_s
        self._restart_cursors = restart_cursors
        self._leaders: dict[tuple[UUID, int], tuple[int | None, float]] = {}  # leader, and since when it leads
        self._transfers_left = 0
        self._failed_before: set[str] = set()  # topics, in the round before

    def reconcile(self) -> None:
        # In this order: the replicas are as of the time when these topics were created, or later.
        topics = list(self._cache.topics.values())
        replicas = self._brokers.replicas()
        self._note_leaders()
        self._transfers_left = TRANSFERS_PER_ROUND
        failed: dict[str, Exception] = {}
        self._for_each_partition(self._call_step, topics, replicas, failed, math.inf)
        if self._cache.in_doubt:  # after the steps above, which need no PostgreSQL
            self._resolve_doubt()
        # Topics that failed in the last round come last, so that they do not use up the time of the others.
        topics.sort(key=lambda topic: topic.name in self._failed_before)
        self._for_each_partition(self._store_step, topics, replicas, failed, time.monotonic() + STORING_S)
        self._failed_before = set(failed)
        for name, error in failed.items():
            unexpected = None if isinstance(error, Unavailable) else error
            self._log.warning("topic not reconciled", topic=name, why=str(error), exc_info=unexpected)
        self._delete_replicas_of_deleted_topics(replicas)

    def _for_each_partition(
        self,
        step: Callable[[CachedTopic, CachedPartition, ReplicasByBroker], None],
        topics: Sequence[CachedTopic],
        replicas: ReplicasByBroker,
        failed: dict[str, Exception],
        deadline_s: float,
    ) -> None:
        for topic in topics:
            for partition in topic.partitions:
                if time.monotonic() > deadline_s:
                    return
                try:
                    step(topic, partition, replicas)
                except Exception as error:  # noqa: BLE001 logged at the end of the round, once for each topic
                    failed.setdefault(topic.name, error)

    def _call_step(self, topic: CachedTopic, partition: CachedPartition, replicas: ReplicasByBroker) -> None:
        self._create_missing(topic, partition, replicas)
        self._rebuild_damaged(topic, partition, replicas)
        self._reconfigure(topic, partition, replicas)
        if self._transfers_left and self._transfer_leadership(topic, partition):
            self._transfers_left -= 1

    def _store_step(self, topic: CachedTopic, partition: CachedPartition, replicas: ReplicasByBroker) -> None:
        """A change that PostgreSQL has to store first; brokers are called in the next round."""
        expected = partition.initial_voters
        voters = _new_initial_voters(topic, partition, replicas)
        if voters is not None:
            # The round may have taken long: the brokers' current state has to lead to the same decision.
            if _new_initial_voters(topic, partition, self._brokers.replicas()) == voters:
                self.restart_partition(topic, partition, expected, voters)
        elif self._can_add_replica(topic, partition):
            self.add_replica(topic, partition)

    def _note_leaders(self) -> None:
        now_s = time.monotonic()
        seen, self._leaders = self._leaders, {}
        for topic in list(self._cache.topics.values()):
            for partition in topic.partitions:
                key = topic.topic_id, partition.partition_id
                leader, since_s = seen.get(key, (None, now_s))
                self._leaders[key] = (leader, since_s) if leader == partition.leader else (partition.leader, now_s)

    def _create_missing(self, topic: CachedTopic, partition: CachedPartition, replicas: ReplicasByBroker) -> None:
        reported = _reported(topic, partition, replicas)
        for broker_id in reversed(partition.replicas):  # the first one campaigns at once, so it is created last
            if broker_id not in replicas:
                continue
            replica = reported.get(broker_id)
            # One that was made from initial voters that have all lost their data gets the new ones. One that has
            # another retention takes over the topic's.
            if (
                replica is None
                or (replica.vacant and (broker_id, replica.incarnation) in partition.initial_voters)
                or replica.has_other_retention((topic.retention_ms, topic.retention_bytes))
            ):
                self._topics.create_replica(topic, partition, broker_id)

    def _rebuild_damaged(self, topic: CachedTopic, partition: CachedPartition, replicas: ReplicasByBroker) -> None:
        """Once the group has removed the damaged member, an empty replica under a new incarnation takes its place."""
        if self._brokers.endpoint(partition.leader) is None:
            return  # nobody could fill it
        for broker_id, replica in _reported(topic, partition, replicas).items():
            endpoint = self._brokers.endpoint(broker_id)
            if endpoint is None or broker_id == partition.leader:
                continue
            if is_rebuildable(broker_id, replica, partition.replicas, partition.configuration):
                body: RebuildPartition = {"incarnation": replica.incarnation}
                what = f"rebuild of the damaged replica on broker {broker_id}"
                self._call_broker(what, endpoint, topic, partition, internal.REBUILD_PARTITION, body)

    def _reconfigure(self, topic: CachedTopic, partition: CachedPartition, replicas: ReplicasByBroker) -> None:
        if partition.configuration is None:
            return
        present = _reported(topic, partition, replicas)
        change = next_change(partition.replicas, partition.configuration, present)
        if change is not None:
            self._call_leader("member change", topic, partition, internal.CHANGE_MEMBERS, change)

    def _transfer_leadership(self, topic: CachedTopic, partition: CachedPartition) -> bool:
        """To the first replica: placement has spread the preferred leaders evenly."""
        preferred, leader = partition.replicas[0], partition.leader
        if leader in (None, preferred) or self._brokers.endpoint(leader) is None or partition.configuration is None:
            return False
        voters = {member["broker_id"] for member in partition.configuration["voters"]}
        if (
            preferred not in voters
            or preferred in partition.damaged
            or not self._brokers.is_settled(preferred, self._settle_s)
        ):
            return False
        # Where the leader has just changed, the preferred one may have died a moment ago without being noticed yet:
        # a transfer to it would stop the partition until the leader cancels it.
        seen = self._leaders.get((topic.topic_id, partition.partition_id))
        if seen is None or time.monotonic() - seen[1] < self._settle_s:
            return False
        self._call_leader("leadership transfer", topic, partition, internal.MOVE_LEADER, {"broker_id": preferred})
        return True

    def _call_leader(
        self, what: str, topic: CachedTopic, partition: CachedPartition, route: InternalRoute, body: object
    ) -> None:
        endpoint = self._brokers.endpoint(partition.leader)
        if endpoint is not None:
            self._call_broker(what, endpoint, topic, partition, route, body)

    def _call_broker(
        self,
        what: str,
        endpoint: str,
        topic: CachedTopic,
        partition: CachedPartition,
        route: InternalRoute,
        body: object,
    ) -> None:
        try:
            self._commands.send(
                route, endpoint, topic.topic_id, partition.partition_id, body, timeout_s=self._timeout_s
            )
        except MyQueueError as error:
            # Not caught up yet, another leader, a change in flight: the next round decides anew.
            self._log.debug(
                "not done yet", what=what, topic=topic.name, partition=partition.partition_id, why=error.message
            )
        else:
            self._log.info("done", what=what, topic=topic.name, partition=partition.partition_id)

    def _can_add_replica(self, topic: CachedTopic, partition: CachedPartition) -> bool:
        has_too_few = len(partition.replicas) < topic.replication
        candidates = self._brokers.active_ids() - set(partition.replicas)
        return has_too_few and self._cache.has_topic(topic) and bool(candidates)

    def add_replica(self, topic: CachedTopic, partition: CachedPartition) -> None:
        """One more replica for a partition that was created while brokers were away.

        Decided inside `changing`, which reads the stored replicas again after a change of unknown outcome.
        """
        with self._cache.changing():
            if not self._can_add_replica(topic, partition):
                return
            _, counts = self._cache.replica_counts()
            expected = partition.replicas
            chosen = min(self._brokers.active_ids() - set(expected), key=lambda b: (counts[b], b))
            with self._primary.transaction() as transaction:
                done = catalog.set_replicas(
                    transaction.session, topic.topic_id, partition.partition_id, expected, (*expected, chosen)
                )
            self._check_stored(done)
            partition.replicas = (*expected, chosen)

    def restart_partition(
        self, topic: CachedTopic, partition: CachedPartition, expected: tuple[Voter, ...], voters: tuple[Voter, ...]
    ) -> None:
        """All replicas have lost their data: the partition restarts, empty, with these initial voters."""
        # Before and after: a cursor of the old log that is stored in between must not outlive this, whatever becomes of
        # the transaction. Nothing of the old log is left to be skipped.
        self._restart_cursors(topic.topic_id, partition.partition_id)
        try:
            with self._heartbeats.storing(), self._cache.changing():
                if partition.initial_voters != expected or not self._cache.has_topic(topic):
                    return  # an earlier attempt did it, or the topic was deleted
                with self._primary.transaction() as transaction:
                    done = catalog.reset_partition(
                        transaction.session, topic.topic_id, partition.partition_id, expected, voters
                    )
                    cursors.restart(transaction.session, topic.topic_id, partition.partition_id)
                self._check_stored(done)
                partition.reset(voters)
        finally:
            self._restart_cursors(topic.topic_id, partition.partition_id)
        self._log.error(
            "all replicas have lost their data; the partition begins again, empty",
            topic=topic.name,
            partition=partition.partition_id,
        )

    def _check_stored(self, done: bool) -> None:
        if not done:
            self._cache.in_doubt = True
            raise MetadataUnavailable("PostgreSQL holds another version of the partition", outcome="not_written")

    def _resolve_doubt(self) -> None:
        """Without waiting for the next change: rows of a change of unknown outcome are to be usable soon."""
        try:
            with self._cache.changing():
                self._log.info("caught up with PostgreSQL")
        except MyQueueError as error:
            self._log.warning("not caught up with PostgreSQL yet", why=error.message)

    def _delete_replicas_of_deleted_topics(self, replicas: ReplicasByBroker) -> None:
        for broker_id, of_broker in replicas.items():
            for (topic_id, partition_id), replica in of_broker.replicas.items():
                endpoint = self._brokers.endpoint(broker_id)
                if topic_id not in self._cache.deleted_topic_ids or endpoint is None:
                    continue
                # Named as it was reported: should its group have changed since, its next report says so.
                body: DeletePartition = {
                    "incarnation": replica.incarnation,
                    "configuration": replica.configuration_index,
                }
                route = internal.DELETE_PARTITION
                try:
                    with suppress(PartitionNotFound):  # an earlier attempt deleted it
                        self._commands.send(route, endpoint, topic_id, partition_id, body, timeout_s=self._timeout_s)
                except MyQueueError as error:
                    self._log.info("deleted topic's data not gone yet", broker_id=broker_id, why=error.message)
                    break
                self._brokers.replica_deleted(broker_id, topic_id, partition_id)


def _new_initial_voters(
    topic: CachedTopic, partition: CachedPartition, replicas: ReplicasByBroker
) -> tuple[Voter, ...] | None:
    incarnations = {broker_id: of_broker.incarnation for broker_id, of_broker in replicas.items()}
    reported = _reported(topic, partition, replicas)
    return new_initial_voters(partition.replicas, partition.initial_voters, incarnations, reported)


def _reported(topic: CachedTopic, partition: CachedPartition, replicas: ReplicasByBroker) -> dict[int, ReportedReplica]:
    key = (str(topic.topic_id), partition.partition_id)
    return {b: of_broker.replicas[key] for b, of_broker in replicas.items() if key in of_broker.replicas}
