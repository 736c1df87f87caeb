"""Checks what a caller gives to a producer, before anything is sent."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from myqueue.argument_checks import WrongType, WrongValue
from myqueue.message import Value, as_bytes
from myqueue.partition_queue import Headers
from myqueue.protocol.errors import TooLarge
from myqueue.protocol.limits import (
    MAX_BATCH_BYTES,
    MAX_HEADER_KEY_CHARS,
    MAX_HEADERS,
    MAX_IDEMPOTENCY_KEY_CHARS,
    MAX_MESSAGE_BYTES,
)

MessageHeaders = Mapping[str, Value | None] | Iterable[tuple[str, Value | None]]

LARGEST_BATCH = MAX_BATCH_BYTES - (64 << 10)  # the rest is for the batch's header and schema


def checked_values(
    values: Iterable[Any], serializer: Callable[[Any], Value] | None = None
) -> tuple[list[bytes], list[int]]:
    """The values as bytes, and their sizes. Converts whole lists where all values have one type."""
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping):
        raise WrongType(f"send_many takes many values, such as a list, not one {type(values).__name__}: use send")
    if not isinstance(values, Iterable):
        raise WrongType(f"values must be many values, such as a list, not {type(values).__name__}")
    if serializer is not None:
        values = list(map(serializer, values))
    given = values if isinstance(values, list) else list(values)
    kinds = set(map(type, given))
    checked: list[bytes]
    if kinds <= {bytes}:
        checked = cast(list[bytes], given)
    elif kinds == {str}:
        checked = list(map(str.encode, cast(list[str], given)))
    else:
        checked = [as_bytes(value, "value") for value in given]
    sizes = list(map(len, checked))
    longest = max(sizes, default=0)
    if longest > MAX_MESSAGE_BYTES:
        raise TooLarge(f"message has {longest} bytes, the limit is {MAX_MESSAGE_BYTES}")
    return checked, sizes


def checked_headers(headers: MessageHeaders) -> tuple[Headers | None, int]:
    """The headers and how many bytes they take."""
    if isinstance(headers, str | bytes) or not isinstance(headers, Iterable):
        raise WrongType(f"headers must be a dict or a list of (key, value), not {type(headers).__name__}")
    pairs: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers
    checked = tuple(map(_checked_header, pairs))
    if len(checked) > MAX_HEADERS:
        raise WrongValue(f"headers: a message may have at most {MAX_HEADERS}, not {len(checked)}")
    return checked or None, sum(len(key.encode()) + len(value or b"") + 16 for key, value in checked)


def _checked_header(pair: Any) -> tuple[str, bytes | None]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise WrongType(f"headers must be a dict or a list of (key, value); {pair!r} is no such pair")
    key, value = pair
    if not isinstance(key, str):
        raise WrongType(f"headers: a key must be a str, not {type(key).__name__} ({key!r})")
    if len(key) > MAX_HEADER_KEY_CHARS:
        raise WrongValue(f"headers: a key may have at most {MAX_HEADER_KEY_CHARS} characters, not {len(key)}")
    return key, None if value is None else as_bytes(value, f"headers: the value of {key!r}")


def check_idempotency_key(key: str) -> None:
    if not isinstance(key, str):
        raise WrongType(f"idempotency_key must be a str, not {type(key).__name__}")
    if not (0 < len(key) <= MAX_IDEMPOTENCY_KEY_CHARS and key.isascii() and key.isprintable() and key == key.strip()):
        raise WrongValue(f"idempotency_key must be 1 to {MAX_IDEMPOTENCY_KEY_CHARS} printable ASCII characters")
