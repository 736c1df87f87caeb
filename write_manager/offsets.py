"""Fresh offsets from the brokers that lead a topic's partitions."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from myqueue.protocol.errors import NoLeader
from myqueue.protocol.internal import Offsets
from service.fanout import FanOut
from write_manager.broker_calls import BrokerCalls
from write_manager.directory import Topic
from write_manager.membership import Membership

PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Fresh:
    found: dict[int, Offsets]
    missing: tuple[int, ...]  # partitions for which no leader answered


class FreshOffsets:
    def __init__(
        self, calls: BrokerCalls, members: Membership, fan_out: FanOut[int, Offsets], *, timeout_s: float
    ) -> None:
        self._calls = calls
        self._members = members
        self._fan_out = fan_out
        self._timeout_s = timeout_s

    def ask(self, topic: Topic, partition_ids: Iterable[int], timestamp: int | None = None) -> Fresh:
        """Leaders answer, others do not: the one believed to lead is asked first. What they say is kept as known."""
        asked = set(partition_ids)
        candidates = {
            p: self._members.endpoints(topic.partitions[p].leader, topic.partitions[p].replicas) for p in asked
        }

        def question(endpoint: str, partitions: list[int]) -> dict[int, Offsets]:
            answers = self._calls.offsets(endpoint, topic.topic_id, partitions, timestamp, self._timeout_s)
            return {answer["partition_id"]: answer for answer in answers if answer is not None}

        found = self._fan_out.ask(candidates, question)
        for partition_id, offsets in found.items():
            partition = topic.partitions[partition_id]
            partition.learn_bounds(offsets["beginning_offset"], offsets["end_offset"])
            if offsets["term"] >= partition.term:
                partition.leader, partition.term = offsets["leader"], offsets["term"]
        return Fresh(found, tuple(sorted(asked - found.keys())))

    def require(self, topic: Topic, partition_ids: Iterable[int], timestamp: int | None = None) -> dict[int, Offsets]:
        """Waits a little for leaders that are being elected."""
        deadline_s = time.monotonic() + self._timeout_s
        found: dict[int, Offsets] = {}
        missing = tuple(partition_ids)
        while missing:
            fresh = self.ask(topic, missing, timestamp)
            found |= fresh.found
            missing = fresh.missing
            if missing and time.monotonic() + PAUSE_S > deadline_s:
                raise NoLeader(f"partition {missing[0]} has no leader right now", outcome="not_written")
            if missing:
                time.sleep(PAUSE_S)
        return found
