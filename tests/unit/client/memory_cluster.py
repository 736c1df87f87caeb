"""A scripted answer that behaves like a small cluster: stores what is produced, once per Idempotency-Key."""

import threading
import time
from typing import Any

from tests.unit.client.scripted_server import Reply, Seen, failure


class MemoryCluster:
    """One topic, one partition. `messages` is its log."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self._produced: dict[str, int] = {}
        self._claimed: dict[str, int] = {}
        self._cursor = 0
        self._lock = threading.Lock()

    def __call__(self, seen: Seen) -> Reply:
        if seen.path == "/producer/register":
            return Reply(201, {"producer_id": 3})
        if seen.path == "/consumer/register":
            return Reply(201, {"consumer_id": 5})
        if seen.path == "/size":
            return Reply(200, {"status": "success", "size": len(self.messages) - self._cursor})
        if seen.path == "/producer/produce":
            return self.produce(seen)
        if seen.path == "/consumer/consume":
            return self.consume(seen)
        return Reply(404, failure(404, 40400, "no such path"))

    def produce(self, seen: Seen) -> Reply:
        with self._lock:
            if seen.key not in self._produced:
                self._produced[seen.key] = len(self.messages)
                self.messages.append(seen.body["message"])
            return Reply(200, {"status": "success", "partition_id": 0, "offset": self._produced[seen.key]})

    def consume(self, seen: Seen) -> Reply:
        deadline = time.monotonic() + int(seen.query.get("wait_ms", "0")) / 1000
        while True:
            with self._lock:
                if seen.key not in self._claimed and self._cursor < len(self.messages):
                    self._claimed[seen.key] = self._cursor
                    self._cursor += 1
                offset = self._claimed.get(seen.key)
            if offset is not None:
                return Reply(200, self._message(offset))
            if time.monotonic() >= deadline:
                return Reply(204, None)
            time.sleep(0.005)

    def _message(self, offset: int) -> dict[str, Any]:
        return {
            "status": "success",
            "message": self.messages[offset],
            "key": None,
            "partition_id": 0,
            "offset": offset,
            "timestamp": 1_700_000_000_000 + offset,
            "producer_id": 3,
        }
