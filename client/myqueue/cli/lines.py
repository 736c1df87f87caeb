"""Lines of input as messages. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from myqueue.protocol.limits import MAX_KEY_BYTES, MAX_MESSAGE_BYTES


class BadLine(ValueError):
    """The message names the line."""


@dataclass(frozen=True, slots=True)
class Shape:
    delimiter: bytes = b"\n"
    separator: bytes | None = None  # between key and value
    key: bytes | None = None  # of all of them


def messages_in(chunks: Iterable[bytes], shape: Shape) -> Iterator[tuple[bytes | None, bytes]]:
    """Keys and values. What follows the last delimiter is a message if it is not empty; every other line is one."""
    for number, line in enumerate(_lines(chunks, shape), 1):
        yield message_of(line, f"line {number}", shape)


def _lines(chunks: Iterable[bytes], shape: Shape) -> Iterator[bytes]:
    longest = MAX_MESSAGE_BYTES + MAX_KEY_BYTES + len(shape.separator or b"")
    rest = b""
    count = 0
    for chunk in chunks:
        lines = (rest + chunk).split(shape.delimiter)
        rest = lines.pop()
        count += len(lines)
        yield from lines
        if len(rest) > longest:
            raise BadLine(f"line {count + 1}: is longer than a message may be ({MAX_MESSAGE_BYTES} bytes)")
    if rest:
        yield rest


def message_of(line: bytes, where: str, shape: Shape) -> tuple[bytes | None, bytes]:
    """Key and value; whatever it holds, it is one message."""
    key, value = shape.key, line
    if shape.separator is not None:
        key, found, value = line.partition(shape.separator)
        if not found:
            shown = shape.separator.decode(errors="backslashreplace")
            raise BadLine(f"{where}: has no key separator {shown!r}")
    if len(value) > MAX_MESSAGE_BYTES:
        raise BadLine(f"{where}: message has {len(value)} bytes, the limit is {MAX_MESSAGE_BYTES}")
    if key is not None and len(key) > MAX_KEY_BYTES:
        raise BadLine(f"{where}: key has {len(key)} bytes, the limit is {MAX_KEY_BYTES}")
    return key, value
