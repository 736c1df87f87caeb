"""A system under measurement: how it is started, what it promises, what is measured on it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.measurement import Addresses, Measurement


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
        """What to install, when it is not there."""

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
