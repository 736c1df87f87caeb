"""What the write manager tells brokers to do."""

from uuid import UUID

from myqueue.protocol import internal
from myqueue.protocol.errors import PartitionNotFound
from myqueue.protocol.internal import MemberChange, PartitionSpec
from service.calls import Caller


class BrokerCalls:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def create_partition(
        self, endpoint: str, topic_id: UUID, partition_id: int, spec: PartitionSpec, timeout_s: float
    ) -> None:
        path = internal.PARTITION.format(topic_id=topic_id, partition_id=partition_id)
        self._caller.json("PUT", endpoint + path, spec, timeout_s=timeout_s)

    def delete_partition(self, endpoint: str, topic_id: str, partition_id: int, timeout_s: float) -> None:
        path = internal.PARTITION.format(topic_id=topic_id, partition_id=partition_id)
        try:
            self._caller.json("DELETE", endpoint + path, timeout_s=timeout_s)
        except PartitionNotFound:
            return  # gone already

    def change_members(
        self, endpoint: str, topic_id: UUID, partition_id: int, change: MemberChange, timeout_s: float
    ) -> None:
        path = internal.MEMBERS.format(topic_id=topic_id, partition_id=partition_id)
        self._caller.json("POST", endpoint + path, change, timeout_s=timeout_s)

    def hand_over(self, endpoint: str, topic_id: UUID, partition_id: int, broker_id: int, timeout_s: float) -> None:
        path = internal.LEADER.format(topic_id=topic_id, partition_id=partition_id)
        self._caller.json("POST", endpoint + path, {"broker_id": broker_id}, timeout_s=timeout_s)
