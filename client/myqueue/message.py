"""A message that was read, and the receipt of one that was sent."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from myqueue.argument_checks import WrongType

Value = bytes | str


class Message(NamedTuple):
    """One message of a topic. `timestamp` is in ms since 1970, `producer_id` is None for one that was sent alone."""

    topic: str
    value: Any  # bytes, or what the consumer's deserializer has made of them
    key: bytes | None
    partition: int
    offset: int
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
    producer_id: int | None = None

    @property
    def text(self) -> str:
        """The value as text, if it is bytes; UnicodeDecodeError if it is not UTF-8."""
        text: str = self.value.decode()
        return text


class TopicPartition(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where an acknowledged message is stored."""

    topic: str
    partition: int
    offset: int


def as_bytes(value: Value, what: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    hint = "; a value_serializer, such as json_serializer, makes bytes of other values" if what == "value" else ""
    raise WrongType(f"{what} must be bytes or str, not {type(value).__name__}{hint}")
