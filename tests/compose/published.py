"""What the workload and the history checker need of a stack, by its published port alone."""

from collections.abc import Iterator

import requests

from myqueue import Admin
from tests.calls import Calls
from tests.waiting import until

PAGE = 1000


class Published:
    def __init__(self, url: str) -> None:
        self.url = url

    def await_leader(self, topic: str, partition_id: int, *, within_s: float) -> str:
        """The service of the broker that leads the partition."""

        def look() -> str | None:
            leader = self._partition(topic, partition_id).get("leader")
            return None if leader is None else f"broker-{leader}"

        return until(look, within_s=within_s, what=f"partition {partition_id} of {topic} has a leader")

    def messages(self, name: str, topic: str, partition_id: int) -> Iterator[tuple[int, bytes]]:
        """Everything that is in a partition which was never cut, up to where its leader says that it ends."""
        end = self._partition(topic, partition_id)["end_offset"]
        offset = 0
        with requests.Session() as session:
            while offset < end:
                path = f"/v1/topics/{topic}/partitions/{partition_id}/messages"
                answer = Calls(self.url, session).get(path, offset=offset, limit=PAGE, wait_ms=1000)
                assert answer.status_code == 200, answer.text
                for message in answer.json()["messages"]:
                    assert message["offset"] == offset, message
                    yield offset, message["value"].encode()
                    offset += 1

    def positions(self, topic: str) -> dict[tuple[str | None, int], int]:
        """Where each consumer goes on, by its name and the partition."""
        with Admin(self.url) as admin:
            return {
                (consumer.name, partition): lag.cursor
                for consumer in admin.consumers(topic)
                for partition, lag in admin.lag(consumer.consumer_id).partitions.items()
            }

    def _partition(self, topic: str, partition_id: int) -> dict[str, int]:
        with requests.Session() as session:
            answer = Calls(self.url, session).partitions(topic)
        assert answer.status_code == 200, answer.text
        found: dict[str, int] = answer.json()["partitions"][partition_id]
        return found
