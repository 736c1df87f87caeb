"""Offsets of a topic's partitions, straight from the brokers that lead them."""

from collections.abc import Sequence

from myqueue.protocol import internal
from myqueue.protocol.internal import Offsets, OffsetsAnswer, OffsetsRequest, TopicRecord
from service.calls import Caller
from service.fanout import FanOut


class PartitionOffsets:
    def __init__(self, caller: Caller, fan_out: FanOut[list[Offsets | None]], *, timeout_s: float) -> None:
        self._caller = caller
        self._fan_out = fan_out
        self._timeout_s = timeout_s

    def ask(self, topic: TopicRecord, partition_ids: Sequence[int]) -> dict[int, Offsets]:
        """Partitions whose leader does not answer are missing."""
        by_endpoint: dict[str, OffsetsRequest] = {}
        for partition_id in partition_ids:
            endpoint = topic["partitions"][partition_id]["endpoint"]
            if endpoint is not None:
                request = by_endpoint.setdefault(endpoint, {"partitions": [], "timestamp": None})
                request["partitions"].append({"topic_id": topic["topic_id"], "partition_id": partition_id})

        def question(endpoint: str) -> list[Offsets | None]:
            answer: OffsetsAnswer = self._caller.json(
                "POST", endpoint + internal.OFFSETS, by_endpoint[endpoint], timeout_s=self._timeout_s
            )
            return answer["offsets"]

        answers = self._fan_out.ask(by_endpoint, question)
        return {entry["partition_id"]: entry for answer in answers.values() for entry in answer if entry is not None}
