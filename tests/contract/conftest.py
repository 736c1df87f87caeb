"""The same tests on every kind of disk."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.storage.disk import Disk
from broker.storage.memory_disk import MemoryDisk
from broker.storage.real_disk import RealDisk
from tests.broker_store import Store
from tests.fault_disk import FaultDisk

MakeStore = Callable[..., Store]
_JOURNAL_BYTES = 1 << 20


@pytest.fixture(params=["disk", "memory", "fault"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeStore]:
    made: list[Store] = []

    def make_disk() -> Disk:
        if request.param == "disk":
            return RealDisk(tmp_path / f"store-{len(made)}")
        return MemoryDisk() if request.param == "memory" else FaultDisk()

    def make(**options: Any) -> Store:
        made.append(Store(make_disk(), journal_segment_bytes=_JOURNAL_BYTES, **options))
        return made[-1]

    yield make
    for store in made:
        store.close()
        if isinstance(store.disk, RealDisk | MemoryDisk):
            store.disk.close()


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    return make_store()
