"""What is measured and what comes out: a measurement runs in a process of its own and gives one figure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Unit = Literal["messages/s", "ms", "share"]
Detail = float | int | str | list[float]
Addresses = Mapping[str, str]

SIZES = (100, 1024)


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things are measured, and whose CPU time is counted. `quick` trades trust in the figures for time."""

    quick: bool
    seconds: float  # of one measurement, after the warm-up
    warm_up_s: float
    stored_messages: int  # of the measurement with many messages stored
    fill_messages: int  # stored before a consume measurement at the least
    servers: Mapping[str, int] = field(default_factory=dict)  # name and pid


FULL = Pace(quick=False, seconds=30.0, warm_up_s=3.0, stored_messages=10_000_000, fill_messages=2_000_000)
QUICK = Pace(quick=True, seconds=2.0, warm_up_s=0.5, stored_messages=1_000_000, fill_messages=100_000)


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    unit: Unit
    seconds: float
    messages: int
    details: dict[str, Detail] = field(default_factory=dict)


Run = Callable[[Addresses, Pace, int], Figure]


@dataclass(frozen=True, slots=True)
class Measurement:
    """`group` is what is compared (produce, consume, …), `method` is how this system does it."""

    system: str
    group: str
    method: str
    size: int
    run: Run

    @property
    def key(self) -> str:
        return key_of(self.system, self.method, self.size)


def key_of(system: str, method: str, size: int) -> str:
    return f"{system}.{method}.{size}"


@dataclass(frozen=True, slots=True)
class Result:
    """A figure, or the reason why there is none."""

    system: str
    group: str
    method: str
    size: int
    figure: Figure | None
    error: str | None = None

    @property
    def key(self) -> str:
        return key_of(self.system, self.method, self.size)
