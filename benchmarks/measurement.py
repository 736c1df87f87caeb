"""A measurement, its figure, and the system that it is taken of. A measurement runs in a process of its own."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

Unit = Literal["messages/s", "ms", "share", "times", "ratio"]
Detail = float | int | str | list[float]
Addresses = Mapping[str, str]

SIZES = (100, 1024)


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to measure, and whose CPU time to count. `quick` trades accuracy for time."""

    quick: bool
    seconds: float  # of one measurement, after the warm-up
    warm_up_s: float
    stored_messages: int  # of the measurement with many messages stored
    fill_messages: int  # stored before a consume measurement at the least
    spark_messages: int  # that Spark reads
    spark_warm_ups: int  # rounds that do not count, while Java compiles
    spark_rounds: int  # of which the best counts
    rounds: int  # of the repeated measurements, in turn with the peers'; the median counts
    servers: Mapping[str, int] = field(default_factory=dict)  # name and pid


FULL = Pace(
    quick=False,
    seconds=20.0,
    warm_up_s=3.0,
    stored_messages=10_000_000,
    fill_messages=2_000_000,
    spark_messages=5_000_000,
    spark_warm_ups=2,
    spark_rounds=5,
    rounds=3,
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
    rounds=1,
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
    spare_s: float = 120.0  # for preparation and clean-up
    repeated: bool = False  # in every round; the others run in the first one only

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


def median_of(results: Sequence[Result]) -> Result:
    """Of the rounds of one measurement; it has failed if one of them has. A p99 is the median of theirs."""
    failed = [result for result in results if result.figure is None]
    if failed or len(results) == 1:
        return (failed or results)[0]
    figures = sorted((result.figure for result in results if result.figure is not None), key=lambda f: f.value)
    middle = figures[len(figures) // 2]
    details: dict[str, Detail] = {**middle.details, "rounds_all": [figure.value for figure in figures]}
    p99s = [p99 for figure in figures if isinstance(p99 := figure.details.get("p99_ms"), float)]
    if p99s:
        details["p99_ms"] = statistics.median_high(p99s)
    return replace(results[0], figure=replace(middle, details=details))


@dataclass(frozen=True, slots=True)
class Running:
    version: str
    addresses: Addresses
    pids: Mapping[str, int] = field(default_factory=dict)  # of its server processes


class System(Protocol):
    key: str
    title: str
    durability: str

    def missing(self) -> str | None:
        """What to install if it is missing."""

    def running(self, folder: Path) -> AbstractContextManager[Running]: ...

    def measurements(self) -> list[Measurement]: ...


@dataclass(frozen=True, slots=True)
class SystemNote:
    """What the tables say about a system."""

    key: str
    title: str
    durability: str
    version: str | None  # None: it was not measured
    missing: str | None = None
