"""Session tokens: a position in PostgreSQL's WAL. A read that carries one sees at least the writes up to it."""

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
