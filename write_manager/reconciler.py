"""Makes brokers match the catalog, a step at a time: replicas, members, leaders, and what deleted topics left."""

import time
from collections.abc import Callable
from uuid import UUID

from myqueue.protocol.errors import MyQueueError
from service.logs import Log
from write_manager.broker_calls import BrokerCalls
from write_manager.directory import Directory, Partition, Topic
from write_manager.members import next_change
from write_manager.membership import Holdings, Membership
from write_manager.topics import Topics

# A handover costs its partition a moment: not all of them at once.
HANDOVERS_A_ROUND = 4


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

    def reconcile(self) -> None:
        if self._directory.unsure:
            self._topics.catch_up()
        holdings = self._members.holdings()
        self._note_leaders()
        handovers = HANDOVERS_A_ROUND
        for topic in list(self._directory.topics.values()):
            for partition in topic.partitions:
                self._hold(topic, partition, holdings)
                self._take_in(topic, partition, holdings)
                if handovers and self._hand_over(topic, partition):
                    handovers -= 1
        self._drop_deleted(holdings)

    def _note_leaders(self) -> None:
        now_s = time.monotonic()
        seen, self._leaders = self._leaders, {}
        for topic in list(self._directory.topics.values()):
            for partition in topic.partitions:
                key = topic.topic_id, partition.partition_id
                leader, since_s = seen.get(key, (None, now_s))
                self._leaders[key] = (leader, since_s) if leader == partition.leader else (partition.leader, now_s)

    def _hold(self, topic: Topic, partition: Partition, holdings: Holdings) -> None:
        if len(partition.replicas) < topic.replication:
            self._topics.widen(topic, partition)
        for broker_id in partition.replicas:
            if broker_id in holdings and (str(topic.topic_id), partition.partition_id) not in holdings[broker_id]:
                self._topics.hold(topic, partition, broker_id)

    def _take_in(self, topic: Topic, partition: Partition, holdings: Holdings) -> None:
        endpoint = self._members.endpoint(partition.leader)
        if partition.configuration is None or endpoint is None:
            return
        key = (str(topic.topic_id), partition.partition_id)
        present = {b: held[key] for b, held in holdings.items() if key in held}
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
        for broker_id, held in holdings.items():
            for topic_id, partition_id in held:
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
