"""What the library hands out: a message that was read, and the receipt of one that was sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from myqueue.protocol.wire_bytes import bytes_from_wire

Value = bytes | str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a topic. `timestamp` is in ms since 1970, `producer_id` is None if no producer is known."""

    topic: str
    value: bytes
    key: bytes | None
    partition: int
    offset: int
    timestamp: int
    producer_id: int | None

    @property
    def text(self) -> str:
        """The value as text; UnicodeDecodeError if it is not UTF-8."""
        return self.value.decode()


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where an acknowledged message is stored."""

    topic: str
    partition: int
    offset: int


def message_from_body(topic: str, body: Mapping[str, Any]) -> Message:
    key = body.get("key")
    return Message(
        topic=topic,
        value=bytes_from_wire(body["message"]),
        key=None if key is None else bytes_from_wire(key),
        partition=body["partition_id"],
        offset=body["offset"],
        timestamp=body["timestamp"],
        producer_id=body.get("producer_id"),
    )


def as_bytes(value: Value, what: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{what} must be bytes or str, not {type(value).__name__}")
