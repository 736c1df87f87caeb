"""The files of a scenario: `producer_<id>.txt`, which is replayed, and `consumer_<id>.txt`, which is written."""

import re
from dataclasses import dataclass
from pathlib import Path

from myqueue.protocol.limits import MAX_KEY_BYTES, MAX_MESSAGE_BYTES, topic_name_problem

_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])\Z", re.ASCII)
_SEPARATOR = re.compile(r"\t+")  # several in a row are one: people line columns up
_SHAPE = "ts, msg, parallel, topic, separated by tabs"
# Characters that would break the line. Others, backslashes too, are written as they are.
_WRITTEN = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


class IncompatibleLog(Exception):
    def __init__(self, path: Path, number: int, problem: str) -> None:
        super().__init__(f"log file: incompatible: {path}, line {number}: {problem}")


@dataclass(frozen=True, slots=True)
class Line:
    second: int  # of the day
    message: str
    lane: str
    topic: str


def producer_file(folder: Path, number: int) -> Path:
    return folder / f"producer_{number}.txt"


def consumer_file(folder: Path, number: int) -> Path:
    return folder / f"consumer_{number}.txt"


def read_log(path: Path) -> list[Line]:
    """All lines, or IncompatibleLog for the first one of another shape."""
    lines = []
    for number, data in enumerate(_lines_of(path), 1):
        try:
            lines.append(parse_line(data))
        except ValueError as error:
            raise IncompatibleLog(path, number, str(error)) from None
    return lines


def _lines_of(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return data.removesuffix(b"\n").split(b"\n") if data else []


def parse_line(data: bytes) -> Line:
    """ValueError says what is wrong."""
    try:
        text = data.removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    fields = _SEPARATOR.split(text)
    if len(fields) != 4 or "" in fields:
        found = sum(field != "" for field in fields)
        counted = f"{found} field{'' if found == 1 else 's'}, not 4"
        raise ValueError(f"{counted if found != 4 else 'a tab too many'} ({_SHAPE})")
    time, message, lane, topic = fields
    if (clock := _TIME.match(time)) is None:
        raise ValueError(f"ts must be a time as HH:MM:SS, not {time[:40]!r}")
    if (size := len(message.encode())) > MAX_MESSAGE_BYTES:
        raise ValueError(f"msg has {size} bytes, the limit is {MAX_MESSAGE_BYTES}")
    if (size := len(lane.encode())) > MAX_KEY_BYTES:
        raise ValueError(f"parallel has {size} bytes, the limit is {MAX_KEY_BYTES}")
    if (problem := topic_name_problem(topic)) is not None:
        raise ValueError(problem)
    hours, minutes, seconds = map(int, clock.groups())
    return Line(hours * 3600 + minutes * 60 + seconds, message, lane, topic)


def consumed_line(topic: str, value: bytes) -> str:
    """A message from a log file is written as it was in the log file."""
    return f"{topic}\t{value.decode(errors='backslashreplace').translate(_WRITTEN)}\n"


def read_consumed(path: Path) -> list[tuple[str, str]]:
    """Topic and message of each line; ValueError if one is of another shape."""
    consumed = []
    for number, data in enumerate(_lines_of(path), 1):
        topic, tab, message = data.decode(errors="backslashreplace").partition("\t")
        if not topic or not tab:
            raise ValueError(f"{path}, line {number}: not topic, tab, msg")
        consumed.append((topic, message))
    return consumed
