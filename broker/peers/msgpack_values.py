"""Typed access to values decoded from msgpack: the expected type or `BadFrame`."""

from typing import Any

import msgpack

_MAX_NUMBER = (1 << 64) - 1


class BadFrame(Exception):
    """These bytes are no frame, or this frame cannot be sent."""


def unpacked(data: bytes | memoryview) -> Any:
    """Arrays come as tuples."""
    try:
        return msgpack.unpackb(data, use_list=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadFrame(f"not msgpack: {error}") from error


def number(value: Any) -> int:
    # isinstance would take a bool
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise BadFrame("a number is missing")
    return value


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise BadFrame("a flag is missing")
    return value


def number_or_none(value: Any) -> int | None:
    return None if value is None else number(value)


def octets(value: Any) -> bytes:
    if type(value) is not bytes:
        raise BadFrame("bytes are missing")
    return value


def array(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise BadFrame("an array is missing")
    return value


def array_of(value: Any, length: int) -> tuple[Any, ...]:
    if type(value) is not tuple or len(value) != length:
        raise BadFrame(f"an array of {length} is missing")
    return value
