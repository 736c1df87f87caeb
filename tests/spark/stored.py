"""What a topic holds, as its readers see it."""

import time
from typing import Any, NamedTuple

import requests

from myqueue.protocol.json_bytes import bytes_from_json


class Stored(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


def stored(url: str, topic: str) -> list[Stored]:
    """All that is acknowledged, by partition, in order: up to the ends that the leaders answer, which a replica that
    serves a read may not know yet."""
    listed = requests.get(f"{url}/v1/topics/{topic}/offsets", timeout=10).json()["partitions"]
    found = []
    for one in listed:
        path, offset = f"{url}/v1/topics/{topic}/partitions/{one['partition_id']}/messages", one["beginning_offset"]
        deadline = time.monotonic() + 20
        while offset < one["end_offset"]:
            assert time.monotonic() < deadline, f"{path} ends at {offset}, not at {one['end_offset']}"
            query = {"offset": offset, "limit": 10_000, "wait_ms": 1000}
            answer = requests.get(path, query, timeout=10).json()
            found += [_message(message) for message in answer["messages"]]
            offset = answer["next_offset"]
    return found


def _message(one: dict[str, Any]) -> Stored:
    key = None if one["key"] is None else bytes_from_json(one["key"])
    headers = tuple(
        (header["key"], None if header["value"] is None else bytes_from_json(header["value"]))
        for header in one["headers"]
    )
    return Stored(one["partition_id"], key, bytes_from_json(one["value"]), one["timestamp"], headers)
