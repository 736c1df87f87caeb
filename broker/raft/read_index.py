"""ReadIndex: answers that a leader which was replaced without noticing must not give.

A request is answered after a majority has confirmed, later than the request came, that it still follows this leader,
and after everything the leader had then is applied. Requests that come together share one round of probes. Dedupe
results take the same way: a repeat or a conflict is answered only once it is final.
"""

from typing import NamedTuple

from broker.raft.configuration import GroupConfiguration, MemberId
from broker.raft.events import DedupeOutcome


class ReadRequest(NamedTuple):
    request: int
    log_index: int  # must be applied before the answer is given
    dedupe: DedupeOutcome | None  # the answer, if it is not the end of the log


class ReadRound:
    __slots__ = ("acks", "number", "requests")

    def __init__(self, number: int, requests: list[ReadRequest]) -> None:
        self.number = number
        self.requests = requests
        self.acks: set[MemberId] = set()


class ReadIndex:
    """The requests of one leader: new, in flight to a majority, confirmed and waiting to be applied."""

    __slots__ = ("_confirmed", "_new", "in_flight", "number")

    def __init__(self) -> None:
        self.number = 0  # of the last round
        self.in_flight: list[ReadRound] = []
        self._new: list[ReadRequest] = []
        self._confirmed: list[ReadRequest] = []

    def add(self, request: ReadRequest) -> None:
        self._new.append(request)

    def start_round(self) -> bool:
        """False: there is nothing to confirm."""
        if not self._new:
            return False
        self.number += 1
        self.in_flight.append(ReadRound(self.number, self._new))
        self._new = []
        return True

    def acknowledge(self, sender: MemberId, number: int) -> None:
        """An answer to the newest probe answers all older ones."""
        for round_ in self.in_flight:
            if round_.number <= number:
                round_.acks.add(sender)

    def confirm(self, configuration: GroupConfiguration, me: MemberId) -> None:
        still_in_flight = []
        for round_ in self.in_flight:
            agreeing = sum(1 for voter in configuration.voters if voter == me or voter in round_.acks)
            if agreeing >= configuration.quorum:
                self._confirmed.extend(round_.requests)
            else:
                still_in_flight.append(round_)
        self.in_flight = still_in_flight

    def take_answerable(self, applied: int) -> list[ReadRequest]:
        if not self._confirmed:
            return []
        answerable = [read for read in self._confirmed if read.log_index <= applied]
        self._confirmed = [read for read in self._confirmed if read.log_index > applied]
        return answerable

    def abandon(self) -> list[ReadRequest]:
        """Leadership ended; returns every request that has no answer yet."""
        reads = self._new + [read for round_ in self.in_flight for read in round_.requests] + self._confirmed
        self._new, self.in_flight, self._confirmed = [], [], []
        return reads
