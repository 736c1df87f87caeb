"""What the write manager asks of brokers."""

from collections.abc import Sequence
from uuid import UUID

from myqueue.protocol import headers, internal
from myqueue.protocol.errors import PartitionNotFound
from myqueue.protocol.internal import (
    AppendAnswer,
    MemberChange,
    Offsets,
    OffsetsAnswer,
    OffsetsRequest,
    PartitionSpec,
)
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

    def append(
        self, endpoint: str, topic_id: UUID, partition_id: int, batch_and_marks: bytes, timeout_s: float
    ) -> AppendAnswer:
        path = internal.BATCHES.format(topic_id=topic_id, partition_id=partition_id)
        answer: AppendAnswer = self._caller.json_for_bytes(
            endpoint + path, batch_and_marks, headers.BATCH_TYPE, timeout_s=timeout_s
        )
        return answer

    def offsets(
        self, endpoint: str, topic_id: UUID, partition_ids: Sequence[int], timestamp: int | None, timeout_s: float
    ) -> list[Offsets | None]:
        request: OffsetsRequest = {
            "partitions": [{"topic_id": str(topic_id), "partition_id": p} for p in partition_ids],
            "timestamp": timestamp,
        }
        answer: OffsetsAnswer = self._caller.json("POST", endpoint + internal.OFFSETS, request, timeout_s=timeout_s)
        return answer["offsets"]
