"""What a topic holds, as its readers see it."""

import time
from contextlib import closing
from typing import Any, NamedTuple

from myqueue.protocol import routes
from myqueue.protocol.json_bytes import bytes_from_json
from myqueue.transport import Transport

ANSWER_S = 20.0  # a leader is elected, a replica catches up


class Stored(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


def stored(url: str, topic: str) -> list[Stored]:
    """All that is acknowledged, by partition, in order: up to the ends that the leaders answer, which a replica that
    serves a read may not know yet."""
    found: list[Stored] = []
    with closing(Transport(url)) as transport:
        listed = transport.call(routes.TOPIC_OFFSETS, path={"topic": topic}, deadline_s=ANSWER_S).body["partitions"]
        for one in listed:
            partition, offset, end = one["partition_id"], one["beginning_offset"], one["end_offset"]
            deadline = time.monotonic() + ANSWER_S
            while offset < end:
                assert time.monotonic() < deadline, f"{topic}/{partition} is readable up to {offset}, not to {end}"
                answer = transport.call(
                    routes.LIST_MESSAGES,
                    path={"topic": topic, "partition_id": partition},
                    query={"offset": offset, "limit": 10_000, "wait_ms": 1000},
                    wait_s=1.0,
                    deadline_s=ANSWER_S,
                )
                if answer.status != 204:  # the replica that was asked does not have it yet
                    found += [_message(message) for message in answer.body["messages"]]
                    offset = answer.body["next_offset"]
    return found


def _message(one: dict[str, Any]) -> Stored:
    key = None if one["key"] is None else bytes_from_json(one["key"])
    headers = tuple(
        (header["key"], None if header["value"] is None else bytes_from_json(header["value"]))
        for header in one["headers"]
    )
    return Stored(one["partition_id"], key, bytes_from_json(one["value"]), one["timestamp"], headers)
