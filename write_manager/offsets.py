"""Fresh offsets from the brokers that lead a topic's partitions."""

from collections.abc import Iterable
from dataclasses import dataclass

from myqueue.protocol.errors import NoLeader
from myqueue.protocol.internal import Offsets
from service.fanout import FanOut
from write_manager.broker_calls import BrokerCalls
from write_manager.directory import Topic
from write_manager.membership import Membership


@dataclass(frozen=True, slots=True)
class Fresh:
    found: dict[int, Offsets]
    missing: tuple[int, ...]  # partitions whose leader did not answer


class FreshOffsets:
    def __init__(
        self, calls: BrokerCalls, members: Membership, fan_out: FanOut[list[Offsets | None]], *, timeout_s: float
    ) -> None:
        self._calls = calls
        self._members = members
        self._fan_out = fan_out
        self._timeout_s = timeout_s

    def ask(self, topic: Topic, partition_ids: Iterable[int], timestamp: int | None = None) -> Fresh:
        """Asks every leader once, all at the same time; what they say is kept as known from here on."""
        asked = set(partition_ids)
        by_endpoint: dict[str, list[int]] = {}
        for partition_id in sorted(asked):
            endpoint = self._members.endpoint(topic.partitions[partition_id].leader)
            if endpoint is not None:
                by_endpoint.setdefault(endpoint, []).append(partition_id)

        def question(endpoint: str) -> list[Offsets | None]:
            return self._calls.offsets(endpoint, topic.topic_id, by_endpoint[endpoint], timestamp, self._timeout_s)

        found: dict[int, Offsets] = {}
        for answer in self._fan_out.ask(by_endpoint, question).values():
            for offsets in filter(None, answer):
                found[offsets["partition_id"]] = offsets
                partition = topic.partitions[offsets["partition_id"]]
                partition.end_offset = max(partition.end_offset, offsets["end_offset"])
        return Fresh(found, tuple(sorted(asked - found.keys())))

    def require(self, topic: Topic, partition_ids: Iterable[int], timestamp: int | None = None) -> dict[int, Offsets]:
        fresh = self.ask(topic, partition_ids, timestamp)
        if fresh.missing:
            raise NoLeader(f"partition {fresh.missing[0]} has no leader right now", outcome="not_written")
        return fresh.found
