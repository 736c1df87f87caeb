"""Messages as text: printed in a format with kcat's letters or as JSON, and read from lines of input. Pure."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from myqueue.cli.output import visible_json, visible_text
from myqueue.message import Message
from myqueue.protocol.json_bytes import bytes_to_json
from myqueue.protocol.limits import MAX_KEY_BYTES, MAX_MESSAGE_BYTES

LETTERS = {
    "s": "value",
    "S": "bytes of the value",
    "k": "key",
    "K": "bytes of the key, -1 without one",
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "T": "timestamp, ms since 1970",
    "h": "headers as name=value,name=value",
}
DEFAULT_FORMAT = "%s\\n"

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.|$)", re.DOTALL)

Show = Callable[[bytes], bytes]


class BadFormat(ValueError):
    """The message says what is wrong with it."""


def unescaped(text: str) -> bytes:
    """Backslash escapes as in C: \\n, \\t, \\r, \\0, \\\\ and \\xNN."""

    def character(found: re.Match[str]) -> str:
        what = found[1]
        if len(what) == 3:
            return chr(0xDC00 + int(what[1:], 16)) if int(what[1:], 16) > 0x7F else chr(int(what[1:], 16))
        if what not in _ESCAPES:
            raise BadFormat(f"\\{what} is no escape; there are \\n \\t \\r \\0 \\\\ and \\xNN")
        return _ESCAPES[what]

    return _ESCAPE.sub(character, text).encode(errors="surrogateescape")


def exactly(value: bytes) -> bytes:
    return value


def visible(value: bytes) -> bytes:
    """For a terminal: what is no text, and what would control it, as escapes."""
    return visible_text(value.decode(errors="backslashreplace")).encode()


def formatter(text: str, show: Show = exactly) -> Callable[[Message], bytes]:
    """`show`: what to do with keys, values and headers before they are printed."""
    parts: list[bytes | Callable[[Message], bytes]] = []
    pieces = re.split(r"%(.|$)", text, flags=re.DOTALL)
    for literal, letter in zip(pieces[::2], [*pieces[1::2], None], strict=True):
        parts.append(unescaped(literal))
        if letter is None:
            break
        parts.append(_field(letter, show))

    def line(message: Message) -> bytes:
        return b"".join([part if isinstance(part, bytes) else part(message) for part in parts])

    return line


def _field(letter: str, show: Show) -> bytes | Callable[[Message], bytes]:
    fields: dict[str, Callable[[Message], bytes]] = {
        "s": lambda m: show(m.value),
        "S": lambda m: b"%d" % len(m.value),
        "k": lambda m: b"" if m.key is None else show(m.key),
        "K": lambda m: b"%d" % (-1 if m.key is None else len(m.key)),
        "t": lambda m: m.topic.encode(),
        "p": lambda m: b"%d" % m.partition,
        "o": lambda m: b"%d" % m.offset,
        "T": lambda m: b"%d" % m.timestamp,
        "h": lambda m: b",".join(show(name.encode()) + b"=" + show(value or b"") for name, value in m.headers),
    }
    if letter == "%":
        return b"%"
    if letter not in fields:
        known = ", ".join(f"%{known} ({what})" for known, what in LETTERS.items())
        raise BadFormat(f"%{letter} is not known; there are {known}, and %% for a %")
    return fields[letter]


def json_object(message: Message) -> dict[str, Any]:
    """As the HTTP API writes it: text where it is text, else {"base64": …}."""
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "key": None if message.key is None else bytes_to_json(message.key),
        "value": bytes_to_json(message.value),
        "headers": [
            {"key": name, "value": None if value is None else bytes_to_json(value)} for name, value in message.headers
        ],
    }


def json_line(message: Message) -> bytes:
    return _json_text(message).encode() + b"\n"


def visible_json_line(message: Message) -> bytes:
    """For a terminal."""
    return visible_json(_json_text(message)).encode() + b"\n"


def _json_text(message: Message) -> str:
    return json.dumps(json_object(message), ensure_ascii=False, separators=(",", ":"))


class BadLine(ValueError):
    """The text names the line."""


@dataclass(frozen=True, slots=True)
class Shape:
    delimiter: bytes = b"\n"
    separator: bytes | None = None  # between key and value
    key: bytes | None = None  # of all of them


def messages_in(chunks: Iterable[bytes], shape: Shape) -> Iterator[tuple[bytes | None, bytes]]:
    """Keys and values. Every line is a message; the part after the last delimiter is one if it is not empty."""
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
    """Key and value of one line."""
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
