"""Offsets of a topic's partitions, straight from the brokers that lead them."""

import time
from collections.abc import Sequence

from myqueue.protocol import internal
from myqueue.protocol.errors import NoLeader
from myqueue.protocol.internal import Offsets, OffsetsAnswer, OffsetsRequest, TopicRecord
from service.calls import Caller
from service.fanout import FanOut

PAUSE_S = 0.05


class PartitionOffsets:
    def __init__(self, caller: Caller, fan_out: FanOut[int, Offsets], *, timeout_s: float) -> None:
        self._caller = caller
        self._fan_out = fan_out
        self._timeout_s = timeout_s

    def ask(self, topic: TopicRecord, partition_ids: Sequence[int]) -> dict[int, Offsets]:
        """As the leaders say, who alone know. Partitions without a leader that answers are missing."""
        candidates = {p: topic["partitions"][p]["endpoints"] for p in partition_ids}

        def question(endpoint: str, partitions: list[int]) -> dict[int, Offsets]:
            request: OffsetsRequest = {
                "partitions": [{"topic_id": topic["topic_id"], "partition_id": p} for p in partitions],
                "timestamp": None,
            }
            answer: OffsetsAnswer = self._caller.json(
                "POST", endpoint + internal.OFFSETS, request, timeout_s=self._timeout_s
            )
            return {entry["partition_id"]: entry for entry in answer["offsets"] if entry is not None}

        return self._fan_out.ask(candidates, question)

    def require(self, topic: TopicRecord, partition_ids: Sequence[int]) -> dict[int, Offsets]:
        """Of all of them; waits a little for leaders that are being elected."""
        deadline_s = time.monotonic() + self._timeout_s
        found: dict[int, Offsets] = {}
        while missing := [p for p in partition_ids if p not in found]:
            found |= self.ask(topic, missing)
            if len(found) < len(partition_ids):
                if time.monotonic() + PAUSE_S > deadline_s:
                    raise NoLeader(f"partition {missing[0]} has no leader right now", retry_after_s=1)
                time.sleep(PAUSE_S)
        return found
