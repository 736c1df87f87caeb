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
        route = internal.CREATE_PARTITION
        path = route.path_for(topic_id=topic_id, partition_id=partition_id)
        self._caller.json(route.method, endpoint + path, spec, timeout_s=timeout_s)

    def delete_partition(self, endpoint: str, topic_id: str, partition_id: int, timeout_s: float) -> None:
        route = internal.DELETE_PARTITION
        path = route.path_for(topic_id=topic_id, partition_id=partition_id)
        try:
            self._caller.json(route.method, endpoint + path, timeout_s=timeout_s)
        except PartitionNotFound:
            return  # gone already

    def change_members(
        self, endpoint: str, topic_id: UUID, partition_id: int, change: MemberChange, timeout_s: float
    ) -> None:
        route = internal.CHANGE_MEMBERS
        path = route.path_for(topic_id=topic_id, partition_id=partition_id)
        self._caller.json(route.method, endpoint + path, change, timeout_s=timeout_s)

    def hand_over(self, endpoint: str, topic_id: UUID, partition_id: int, broker_id: int, timeout_s: float) -> None:
        route = internal.MOVE_LEADER
        path = route.path_for(topic_id=topic_id, partition_id=partition_id)
        self._caller.json(route.method, endpoint + path, {"broker_id": broker_id}, timeout_s=timeout_s)
