"""What the write manager asks of brokers."""

from collections.abc import Sequence
from uuid import UUID

from myqueue.protocol import headers, internal
from myqueue.protocol.internal import AppendAnswer, Offsets, OffsetsAnswer, OffsetsRequest
from service.calls import Caller


class BrokerCalls:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def create_partition(self, endpoint: str, topic: str, topic_id: UUID, partition_id: int, timeout_s: float) -> None:
        path = internal.PARTITION.format(topic_id=topic_id, partition_id=partition_id)
        self._caller.json("PUT", endpoint + path, {"topic": topic}, timeout_s=timeout_s)

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
