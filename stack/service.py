"""What the runner must know to keep one service running."""

import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from stack.process import Command

Role = Literal["balancer", "writes", "reads", "broker", "database"]
Ready = Callable[[int], Awaitable[bool]]


async def _nothing() -> None:
    """Most services need no preparation."""


@dataclass(frozen=True)
class Service:
    name: str
    role: Role
    port: int
    command: Command
    ready: Ready  # takes the pid
    after: tuple[str, ...] = ()  # started when these are ready, or after a while anyway
    prepare: Callable[[], Awaitable[None]] = _nothing
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_s: float = 8.0


# A stack is stopped from the door inwards: nobody loses the one it still talks to.
STOP_ORDER: tuple[frozenset[Role], ...] = (
    frozenset({"balancer"}),
    frozenset({"reads", "writes"}),
    frozenset({"broker"}),
    frozenset({"database"}),
)
