"""Checks what a caller gives to a producer, before anything is sent."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from myqueue.message import Value, as_bytes
from myqueue.partition_queue import Headers
from myqueue.protocol.errors import InvalidRequest, TooLarge
from myqueue.protocol.limits import (
    MAX_BATCH_BYTES,
    MAX_CLIENT_NAME_CHARS,
    MAX_HEADER_KEY_CHARS,
    MAX_HEADERS,
    MAX_IDEMPOTENCY_KEY_CHARS,
    MAX_MESSAGE_BYTES,
)

MessageHeaders = Mapping[str, Value | None] | Iterable[tuple[str, Value | None]]

LARGEST_BATCH = MAX_BATCH_BYTES - (64 << 10)  # the rest is for the batch's header and schema
LARGEST_TIMESTAMP = (1 << 63) - 1


def check_number(
    parameter: str, value: float, lowest: float, highest: float = math.inf, *, whole: bool = False
) -> None:
    """Raises an error that names the parameter."""
    kind = int if whole else (int, float)
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = "an int" if whole else "a number"
        raise TypeError(f"{parameter} must be {wanted}, not {type(value).__name__}")
    if not lowest <= value <= highest or math.isnan(value):
        limit = f"{lowest:g} or more" if highest == math.inf else f"from {lowest:g} to {highest:.0f}"
        raise ValueError(f"{parameter} must be {limit}, not {value}")


def check_name(name: object) -> None:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be a str or None, not {type(name).__name__}")
    if name is not None and not 0 < len(name) <= MAX_CLIENT_NAME_CHARS:
        raise ValueError(f"name must have 1 to {MAX_CLIENT_NAME_CHARS} characters; leave it out to send without one")


def checked_values(
    values: Iterable[Any], serializer: Callable[[Any], Value] | None = None
) -> tuple[list[bytes], list[int]]:
    """The values as bytes, and their sizes. Converts whole lists where all values have one type."""
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping):
        raise TypeError(f"send_many takes many values, such as a list, not one {type(values).__name__}: use send")
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
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    checked = tuple((key, None if value is None else as_bytes(value, "header value")) for key, value in pairs)
    if len(checked) > MAX_HEADERS:
        raise InvalidRequest(f"a message may have at most {MAX_HEADERS} headers")
    for key, _ in checked:
        if type(key) is not str or len(key) > MAX_HEADER_KEY_CHARS:
            raise InvalidRequest(f"a header's key must be a str of at most {MAX_HEADER_KEY_CHARS} characters")
    return checked or None, sum(len(key.encode()) + len(value or b"") + 16 for key, value in checked)


def check_idempotency_key(key: str) -> None:
    if not (0 < len(key) <= MAX_IDEMPOTENCY_KEY_CHARS and key.isascii() and key.isprintable() and key == key.strip()):
        raise InvalidRequest(f"idempotency_key must be 1 to {MAX_IDEMPOTENCY_KEY_CHARS} printable ASCII characters")
