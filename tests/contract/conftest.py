"""The same tests on every kind of storage."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker_store import Store

MakeStore = Callable[..., Store]


@pytest.fixture(params=["disk", "memory"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeStore]:
    made: list[Store] = []

    def make(**options: Any) -> Store:
        folder = tmp_path / f"store-{len(made)}" if request.param == "disk" else None
        made.append(Store(folder, **options))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    return make_store()
