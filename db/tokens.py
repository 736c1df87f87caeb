"""Session tokens: a place in the write-ahead log. A read that carries one sees at least what was written there."""

import re
from dataclasses import dataclass

from myqueue.protocol.errors import InvalidRequest

_TOKEN = re.compile(r"([0-9]{1,10})-([0-9a-f]{1,16})\Z")


@dataclass(frozen=True, slots=True, order=True)
class Token:
    timeline: int
    position: int

    def __str__(self) -> str:
        return f"{self.timeline}-{self.position:x}"

    @classmethod
    def parse(cls, text: str) -> "Token":
        match = _TOKEN.match(text)
        if match is None:
            raise InvalidRequest("X-Myqueue-Token is not a session token; send back what a write answered")
        return cls(int(match[1]), int(match[2], 16))


def position_of(lsn: str) -> int:
    """PostgreSQL writes a log position as two hexadecimal halves: 0/3000148."""
    high, low = lsn.split("/")
    return (int(high, 16) << 32) | int(low, 16)
