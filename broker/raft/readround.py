"""Requests that wait for a majority to confirm who leads."""

from typing import NamedTuple

from broker.raft.events import Judged
from broker.raft.identity import Member


class ReadRequest(NamedTuple):
    request: int
    log_index: int  # must be applied before the answer is given
    judged: Judged | None  # the answer, if it is not the end of the log


class ReadRound:
    __slots__ = ("acks", "number", "requests")

    def __init__(self, number: int, requests: list[ReadRequest]) -> None:
        self.number = number
        self.requests = requests
        self.acks: set[Member] = set()
