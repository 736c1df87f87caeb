"""What a topic holds, as its readers see it."""

from typing import Any, NamedTuple

import requests

from myqueue.protocol.wire_bytes import bytes_from_wire


class Stored(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


def stored(url: str, topic: str) -> list[Stored]:
    """All of it, partition by partition, in order."""
    listed = requests.get(f"{url}/topics/{topic}/partitions", timeout=10).json()["partitions"]
    found = []
    for partition in sorted(one["partition_id"] for one in listed):
        path, offset, end = f"{url}/v1/topics/{topic}/partitions/{partition}/messages", 0, 1
        while offset < end:
            answer = requests.get(path, {"offset": offset, "limit": 10_000}, timeout=10).json()
            found += [_message(one) for one in answer["messages"]]
            offset, end = answer["next_offset"], answer["end_offset"]
    return found


def _message(one: dict[str, Any]) -> Stored:
    key = None if one["key"] is None else bytes_from_wire(one["key"])
    headers = tuple(
        (header["key"], None if header["value"] is None else bytes_from_wire(header["value"]))
        for header in one["headers"]
    )
    return Stored(one["partition_id"], key, bytes_from_wire(one["value"]), one["timestamp"], headers)
