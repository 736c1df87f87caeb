"""What only memory backs is neither answered nor changed while the lease is not verified; and the end of cursors."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from typing import Any, cast

import pytest
import structlog

from db.cursors import StoredConsumer
from myqueue.protocol.errors import ManagerUnavailable
from tests.broker_store import Loop
from write_manager import cursors as cursors_module
from write_manager.consume import Consuming
from write_manager.cursors import Cursors

LOG = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
REPORT: Any = {"delivered": [{"consumer_id": 1, "identity": "x", "partition_id": 0, "offset": 0}]}
GIVE_BACK: Any = {"consumer_id": 1, "identity": "x", "attempt": 1, "beginning_offset": None}


class UnverifiedState:
    async def await_verified(self) -> None:
        raise ManagerUnavailable(outcome="not_written")


class KnownEverything:
    """As cache: every consumer and its topic."""

    async def consumer(self, _consumer_id: int) -> "KnownEverything":
        return self

    def topic(self, _name: str) -> "KnownEverything":
        return self

    def __getattr__(self, _name: str) -> Any:
        return 1


class RecordingCursors:
    def __init__(self) -> None:
        self.changed: list[str] = []

    async def give_back(self, *_: object) -> None:
        self.changed.append("give_back")

    async def deliver(self, *_: object) -> None:
        self.changed.append("deliver")

    async def statuses(self, _consumer_id: int) -> dict[int, Any]:
        return {}


@pytest.mark.parametrize(
    "call",
    [
        lambda consuming: consuming.deliver(REPORT),
        lambda consuming: consuming.give_back(GIVE_BACK),
        lambda consuming: consuming.cursors(1),
    ],
    ids=["deliver", "give_back", "cursors"],
)
def test_refused_while_the_lease_is_not_verified(call: Callable[[Consuming], Coroutine[Any, Any, Any]]) -> None:
    cursors = RecordingCursors()
    known = cast(Any, KnownEverything())
    consuming = Consuming(known, cast(Any, cursors), known, known, cast(Any, UnverifiedState()), lease_s=1)
    with pytest.raises(ManagerUnavailable) as refused:
        asyncio.run(call(consuming))
    assert refused.value.outcome == "not_written"
    assert cursors.changed == []


class HangingPrimary:
    epoch = 1

    def __init__(self) -> None:
        self.asked, self.goes_on = threading.Event(), threading.Event()

    @contextmanager
    def transaction(self) -> Iterator[StoredConsumer]:
        self.asked.set()
        assert self.goes_on.wait(20)
        raise ManagerUnavailable(outcome="not_written")
        yield


def test_cursors_that_cannot_be_stored_do_not_keep_a_process_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is released after it."""
    monkeypatch.setattr(cursors_module, "FLUSH_TIMEOUT_S", 0.1)
    primary = HangingPrimary()
    with closing(Loop()) as loop:
        cursors = Cursors(cast(Any, primary), LOG, loop.loop, lease_s=1, claim_s=1)
        cursors._dirty.add(1)
        try:
            cursors.stop()
            assert primary.asked.is_set()
        finally:
            primary.goes_on.set()
        asyncio.run_coroutine_threadsafe(_others_end(), loop.loop).result(20)


async def _others_end() -> None:
    await asyncio.wait(asyncio.all_tasks() - {cast(Any, asyncio.current_task())})
