"""What was fetched of a partition, kept up to so many bytes: what was asked for last stays. Pure."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    start: int
    end: int
    size: int  # bytes
    content: T


class Kept(Generic[T]):
    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._parts: OrderedDict[int, Part[T]] = OrderedDict()  # by start, in the order of use; they are few
        self._bytes = 0

    def find(self, offset: int) -> T | None:
        for start, part in self._parts.items():
            if start <= offset < part.end:
                self._parts.move_to_end(start)
                return part.content
        return None

    def add(self, part: Part[T]) -> None:
        """It is kept, also if it is larger than all that may be."""
        self._drop(part.start)
        self._parts[part.start] = part
        self._bytes += part.size
        while self._bytes > self._most_bytes and len(self._parts) > 1:
            self._drop(next(iter(self._parts)))

    def _drop(self, start: int) -> None:
        if (part := self._parts.pop(start, None)) is not None:
            self._bytes -= part.size
