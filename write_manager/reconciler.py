"""Makes brokers match the catalog, a step at a time: replicas, members, leaders, and what deleted topics left.

Every step may fail and is decided anew in the next round. A topic that fails keeps no other one from its steps.
"""

import math
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from db.catalog import Founder
from myqueue.protocol.errors import MyQueueError, Unavailable
from service.logs import Log
from write_manager.broker_calls import BrokerCalls
from write_manager.directory import Directory, Partition, Topic
from write_manager.members import HeldReplica, new_founders, next_change
from write_manager.membership import Holdings, Membership
from write_manager.topics import Topics

# A handover costs its partition a moment: not all of them at once.
HANDOVERS_A_ROUND = 4
# Of a round, for steps that PostgreSQL has to store: while it is away each of them waits for it.
STORING_S = 5.0


class Reconciler:
    def __init__(
        self,
        directory: Directory,
        members: Membership,
        topics: Topics,
        calls: BrokerCalls,
        log: Log,
        *,
        timeout_s: float,
        settle_s: float,
    ) -> None:
        self._directory = directory
        self._members = members
        self._topics = topics
        self._calls = calls
        self._log = log
        self._timeout_s = timeout_s
        self._settle_s = settle_s
        self._leaders: dict[tuple[UUID, int], tuple[int | None, float]] = {}  # who leads, seen since when
        self._handovers_left = 0
        self._failed_before: set[str] = set()  # topics, in the round before

    def reconcile(self) -> None:
        # In this order: the brokers of these topics are seen as they were when the topics were made, or later.
        topics = list(self._directory.topics.values())
        holdings = self._members.holdings()
        self._note_leaders()
        self._handovers_left = HANDOVERS_A_ROUND
        failed: dict[str, Exception] = {}
        self._take_step(self._bring_closer, topics, holdings, failed, math.inf)
        if self._directory.unsure:  # after the steps above, which need no PostgreSQL
            self._topics.catch_up()
        # Those that failed in the last round come last, so that they do not use up the time of the others.
        topics.sort(key=lambda topic: topic.name in self._failed_before)
        self._take_step(self._store_step, topics, holdings, failed, time.monotonic() + STORING_S)
        self._failed_before = set(failed)
        for name, error in failed.items():
            unexpected = None if isinstance(error, Unavailable) else error
            self._log.warning("topic not reconciled", topic=name, why=str(error), exc_info=unexpected)
        self._drop_deleted(holdings)

    def _take_step(
        self,
        step: Callable[[Topic, Partition, Holdings], None],
        topics: Sequence[Topic],
        holdings: Holdings,
        failed: dict[str, Exception],
        deadline_s: float,
    ) -> None:
        for topic in topics:
            for partition in topic.partitions:
                if time.monotonic() > deadline_s:
                    return
                try:
                    step(topic, partition, holdings)
                except Exception as error:  # noqa: BLE001 logged at the end of the round, once for each topic
                    failed.setdefault(topic.name, error)

    def _bring_closer(self, topic: Topic, partition: Partition, holdings: Holdings) -> None:
        self._hold(topic, partition, holdings)
        self._take_in(topic, partition, holdings)
        if self._handovers_left and self._hand_over(topic, partition):
            self._handovers_left -= 1

    def _store_step(self, topic: Topic, partition: Partition, holdings: Holdings) -> None:
        """What PostgreSQL has to store first; brokers hear of it in the next round."""
        founders = partition.founders
        found = _founders_again(topic, partition, holdings)
        if found is not None:
            # The round may have taken long: the brokers as they are now have to say the same.
            if _founders_again(topic, partition, self._members.holdings()) == found:
                self._topics.found_again(topic, partition, founders, found)
        elif self._topics.can_widen(topic, partition):
            self._topics.widen(topic, partition)

    def _note_leaders(self) -> None:
        now_s = time.monotonic()
        seen, self._leaders = self._leaders, {}
        for topic in list(self._directory.topics.values()):
            for partition in topic.partitions:
                key = topic.topic_id, partition.partition_id
                leader, since_s = seen.get(key, (None, now_s))
                self._leaders[key] = (leader, since_s) if leader == partition.leader else (partition.leader, now_s)

    def _hold(self, topic: Topic, partition: Partition, holdings: Holdings) -> None:
        held = _held(topic, partition, holdings)
        for broker_id in reversed(partition.replicas):  # the first asks for votes at once: the others come before it
            if broker_id not in holdings:
                continue
            replica = held.get(broker_id)
            # One that was made from founders who have all lost their data learns of the new ones.
            if replica is None or (replica.vacant and (broker_id, replica.incarnation) in partition.founders):
                self._topics.hold(topic, partition, broker_id)

    def _take_in(self, topic: Topic, partition: Partition, holdings: Holdings) -> None:
        endpoint = self._members.endpoint(partition.leader)
        if partition.configuration is None or endpoint is None:
            return
        present = {b: replica.incarnation for b, replica in _held(topic, partition, holdings).items()}
        change = next_change(partition.replicas, partition.configuration, present)
        if change is not None:
            self._try(
                "member change",
                topic,
                partition,
                lambda: self._calls.change_members(
                    endpoint, topic.topic_id, partition.partition_id, change, self._timeout_s
                ),
            )

    def _hand_over(self, topic: Topic, partition: Partition) -> bool:
        """The first replica is to lead: placement has spread those evenly."""
        first, leader = partition.replicas[0], partition.leader
        endpoint = self._members.endpoint(leader)
        if leader in (None, first) or endpoint is None or partition.configuration is None:
            return False
        voters = {member["broker_id"] for member in partition.configuration["voters"]}
        if first not in voters or not self._members.settled(first, self._settle_s):
            return False
        # Where the leader has just changed, the first replica may have died a moment ago without anybody knowing:
        # handing over to it would stop the partition until the leader gives up waiting.
        seen = self._leaders.get((topic.topic_id, partition.partition_id))
        if seen is None or time.monotonic() - seen[1] < self._settle_s:
            return False
        self._try(
            "handover",
            topic,
            partition,
            lambda: self._calls.hand_over(endpoint, topic.topic_id, partition.partition_id, first, self._timeout_s),
        )
        return True

    def _drop_deleted(self, holdings: Holdings) -> None:
        for broker_id, holding in holdings.items():
            for topic_id, partition_id in holding.replicas:
                endpoint = self._members.endpoint(broker_id)
                if topic_id in self._directory.deleted and endpoint is not None:
                    try:
                        self._calls.delete_partition(endpoint, topic_id, partition_id, self._timeout_s)
                    except MyQueueError as error:
                        self._log.info("deleted topic's data not gone yet", broker_id=broker_id, why=error.message)
                        break
                    self._members.note_dropped(broker_id, topic_id, partition_id)

    def _try(self, what: str, topic: Topic, partition: Partition, call: Callable[[], None]) -> None:
        try:
            call()
        except MyQueueError as error:
            # Not caught up yet, another leader, a change under way: the next round looks again.
            self._log.debug(
                "not done yet", what=what, topic=topic.name, partition=partition.partition_id, why=error.message
            )
        else:
            self._log.info("done", what=what, topic=topic.name, partition=partition.partition_id)


def _founders_again(topic: Topic, partition: Partition, holdings: Holdings) -> tuple[Founder, ...] | None:
    incarnations = {broker_id: holding.incarnation for broker_id, holding in holdings.items()}
    return new_founders(partition.replicas, partition.founders, incarnations, _held(topic, partition, holdings))


def _held(topic: Topic, partition: Partition, holdings: Holdings) -> dict[int, HeldReplica]:
    key = (str(topic.topic_id), partition.partition_id)
    return {broker_id: holding.replicas[key] for broker_id, holding in holdings.items() if key in holding.replicas}
