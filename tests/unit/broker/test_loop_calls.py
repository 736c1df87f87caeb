"""Calls from threads into a busy event loop: one that its caller has given up does not happen later."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from broker import loop_calls
from myqueue.protocol.errors import Unavailable
from tests.broker_store import TOPIC_ID, Store

WITHIN_S = 20.0


def test_a_delete_that_was_given_up_does_not_happen_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer write manager may have been answered by then."""
    monkeypatch.setattr(loop_calls, "CALL_TIMEOUT_S", 0.2)
    goes_on = threading.Event()
    with closing(Store(None)) as store:
        store.create()
        replica = store.partitions.get(TOPIC_ID, 0)
        store.driver._loop.call_soon_threadsafe(goes_on.wait, WITHIN_S)
        try:
            with pytest.raises(Unavailable) as refused:
                store.partitions.drop(TOPIC_ID, 0)
        finally:
            goes_on.set()
        assert refused.value.outcome == "not_written"
        monkeypatch.undo()
        assert replica.name in store.driver.statuses()
        store.partitions.drop(TOPIC_ID, 0)
        assert replica.name not in store.driver.statuses()


def test_the_outcome_of_a_call_that_has_begun_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_calls, "CALL_TIMEOUT_S", 2.0)
    began, goes_on = threading.Event(), threading.Event()

    def action() -> str:
        began.set()
        assert goes_on.wait(WITHIN_S)
        return "done"

    with closing(Store(None)) as store, ThreadPoolExecutor(1) as threads:
        call = threads.submit(store.driver.call, action)
        assert began.wait(WITHIN_S)
        with pytest.raises(TimeoutError):
            call.result(2.5)
        goes_on.set()
        assert call.result(WITHIN_S) == "done"
