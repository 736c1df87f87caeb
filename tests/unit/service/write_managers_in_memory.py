"""Write managers without a network, in every state that a caller can meet, and a process that calls them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from myqueue.protocol.errors import RouteNotFound, StandbyManager
from service.active_manager import Attempt, Steps, WriteManagerFollower
from service.calls import CallResponse, ConnectionRefused, NoAnswer

T = TypeVar("T")

A, B = "http://a:1", "http://b:1"
REFUSED, PAUSED, STANDBY, OLDER = "refused", "paused", "standby", "of a release without a standby"
OUT_OF_REACH = "out of reach"


@dataclass(frozen=True)
class CutOff:
    """Active as far as it knows: it has lost its way to PostgreSQL."""

    epoch: int


State = int | str | CutOff  # of a write manager; a number is the epoch of an active one


@dataclass
class Managers:
    """Write managers without a network, and the process that calls them."""

    states: dict[str, State]
    now_s: float = 0.0
    carried_out: list[str] = field(default_factory=list)  # where the current call was
    attempts: list[Attempt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.active = WriteManagerFollower(list(self.states), lambda: self.now_s)

    def call(self, timeout_s: float = 5.0) -> CallResponse:
        self.carried_out, self.attempts = [], []
        return self.run(self.active.attempts(timeout_s))

    def follow(self) -> None:
        self.run(self.active.follow())

    def run(self, steps: Steps[T]) -> T:
        try:
            attempts = next(steps)
            while True:
                attempts = steps.send(self.answers(attempts))
        except StopIteration as end:
            outcome: T = end.value
            return outcome

    def answers(self, attempts: Sequence[Attempt]) -> list[CallResponse | NoAnswer]:
        """They are sent at the same time."""
        self.attempts += attempts
        began_s, ended_s = self.now_s, [self.now_s + (0 if attempts else 0.02)]
        answers = []
        for attempt in attempts:
            self.now_s = began_s
            answers.append(self.answer(attempt))
            ended_s.append(self.now_s)
        self.now_s = max(ended_s)
        return answers

    def answer(self, attempt: Attempt) -> CallResponse | NoAnswer:
        state = self.states[attempt.url]
        if state == REFUSED:
            return ConnectionRefused("refused", outcome="not_written")
        if state == OUT_OF_REACH:
            self.now_s += attempt.timeout_s
            return NoAnswer("cannot connect", outcome="not_written")
        if state == PAUSED:
            self.now_s += attempt.timeout_s
            if not attempt.asks_status:
                self.carried_out.append(attempt.url)  # it may be
            return NoAnswer("too late", outcome="unknown")
        if attempt.asks_status and state == OLDER:
            return CallResponse(404, {}, json.dumps(RouteNotFound().to_body(None)).encode())
        epoch = state.epoch if isinstance(state, CutOff) else state if isinstance(state, int) else None
        if attempt.asks_status:
            degraded = "PostgreSQL has not answered for 4 s" if isinstance(state, CutOff) else None
            status = {"active": epoch is not None, "epoch": epoch, "degraded": degraded}
            return CallResponse(200, {}, json.dumps(status).encode())
        if state == OLDER:
            self.carried_out.append(attempt.url)
            return CallResponse(200, {}, attempt.url.encode())
        if epoch is None:
            return CallResponse(503, {}, json.dumps(StandbyManager().to_body(None)).encode())
        self.carried_out.append(attempt.url)
        return CallResponse(200, {"x-myqueue-epoch": str(epoch)}, attempt.url.encode())

    def asked(self) -> list[str]:
        """Whom the last call was sent to, without questions for a status."""
        return [attempt.url for attempt in self.attempts if not attempt.asks_status]
