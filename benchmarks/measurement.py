"""What is measured and what comes out: a measurement runs in a process of its own and gives one figure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Unit = Literal["messages/s", "ms", "share", "times"]
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
    spark_messages: int  # that Spark reads
    spark_warm_ups: int  # rounds that do not count: Java compiles what it runs often
    spark_rounds: int  # of which the best counts
    servers: Mapping[str, int] = field(default_factory=dict)  # name and pid


FULL = Pace(
    quick=False,
    seconds=30.0,
    warm_up_s=3.0,
    stored_messages=10_000_000,
    fill_messages=2_000_000,
    spark_messages=5_000_000,
    spark_warm_ups=2,
    spark_rounds=5,
)
QUICK = Pace(
    quick=True,
    seconds=2.0,
    warm_up_s=0.5,
    stored_messages=1_000_000,
    fill_messages=100_000,
    spark_messages=300_000,
    spark_warm_ups=1,
    spark_rounds=2,
)


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
    spare_s: float = 120.0  # for what it does before and after the clock runs

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
