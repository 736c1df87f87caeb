"""Which messages of a batch are new, which were appended before under the same key, and which abuse a key.

Nothing in here does IO. What is known comes from the log alone: the last marked messages by position, never by clock,
and the appends that are on their way into it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from myqueue.protocol.marks import Mark

P = TypeVar("P")

NO_KEY = bytes(16)  # a mark that names the producer only


@dataclass(frozen=True, slots=True)
class Seen(Generic[P]):
    """Where a key's message is: at an offset, or at a row of an append that is still on its way."""

    crc: int
    number: int
    pending: P | None = None


@dataclass(frozen=True, slots=True)
class Write:
    row: int  # its place among the messages that are written


@dataclass(frozen=True, slots=True)
class Repeat(Generic[P]):
    seen: Seen[P]


@dataclass(frozen=True, slots=True)
class Again:
    """The same key twice in one batch: the row of the first one."""

    row: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """The key was used before with another message."""


class Known(Generic[P]):
    """Keys of one partition: the last `window` marked messages of the log, and all pending ones."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._written: OrderedDict[bytes, Seen[P]] = OrderedDict()
        self._pending: dict[bytes, Seen[P]] = {}

    def __len__(self) -> int:
        return len(self._written)

    def find(self, key: bytes) -> Seen[P] | None:
        return self._pending.get(key) or self._written.get(key)

    def expect(self, pending: P, marks: Iterable[Mark]) -> None:
        """`marks` as they will be written: their positions are rows of the append."""
        for mark in marks:
            if mark.key != NO_KEY:
                self._pending[mark.key] = Seen(mark.crc, mark.position, pending)

    def written(self, base_offset: int, marks: Iterable[Mark]) -> None:
        for mark in marks:
            if mark.key == NO_KEY:
                continue
            self._pending.pop(mark.key, None)
            self._written[mark.key] = Seen(mark.crc, base_offset + mark.position)
            if len(self._written) > self._window:
                self._written.popitem(last=False)

    def refused(self, marks: Iterable[Mark]) -> None:
        """The append did not reach the log."""
        for mark in marks:
            self._pending.pop(mark.key, None)


Verdict = Write | Repeat[P] | Again | Conflict


def decide(count: int, marks: Sequence[Mark], known: Known[P]) -> list[Verdict[P]]:
    """One verdict for each of the `count` messages, in order."""
    by_position = {mark.position: mark for mark in marks if mark.key != NO_KEY}
    here: dict[bytes, tuple[int, int]] = {}
    verdicts: list[Verdict[P]] = []
    row = 0
    for position in range(count):
        mark = by_position.get(position)
        if mark is not None:
            seen = known.find(mark.key)
            if seen is not None:
                verdicts.append(Repeat(seen) if seen.crc == mark.crc else Conflict())
                continue
            first = here.get(mark.key)
            if first is not None:
                verdicts.append(Again(first[1]) if first[0] == mark.crc else Conflict())
                continue
            here[mark.key] = (mark.crc, row)
        verdicts.append(Write(row))
        row += 1
    return verdicts
