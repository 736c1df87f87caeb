"""Periodic jobs start and stop with their process, which may be told to stop while it starts."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import structlog
from apscheduler.schedulers.background import BackgroundScheduler

from service.scheduler import Scheduler
from tests.waiting import until


def test_a_stop_while_it_starts_waits_for_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library says that it runs before its thread does."""
    scheduler = Scheduler(structlog.get_logger())
    runs, goes_on = threading.Event(), threading.Event()
    wakeup: Callable[[BackgroundScheduler], None] = BackgroundScheduler.wakeup

    def held_up(started: BackgroundScheduler) -> None:
        runs.set()
        assert goes_on.wait(20)
        wakeup(started)

    monkeypatch.setattr(BackgroundScheduler, "wakeup", held_up)
    ran = threading.Event()
    scheduler.add("job", 0.01, ran.set)
    with ThreadPoolExecutor(2) as pool:
        start = pool.submit(scheduler.start)
        assert runs.wait(20)
        stop = pool.submit(scheduler.stop)
        until(lambda: stop.running() or stop.done(), within_s=20, what="the stop has begun")
        goes_on.set()
        start.result(20)
        stop.result(20)


def test_after_a_pause_no_job_begins_and_those_that_run_go_on() -> None:
    scheduler = Scheduler(structlog.get_logger())
    runs, goes_on, ended = threading.Event(), threading.Event(), threading.Event()
    again: list[int] = []

    def job() -> None:
        again.append(1)
        runs.set()
        assert goes_on.wait(20)
        ended.set()

    scheduler.add("job", 0.01, job)
    scheduler.start()
    assert runs.wait(20)
    scheduler.pause()
    goes_on.set()
    scheduler.stop()
    assert ended.is_set()
    assert len(again) == 1


def test_a_job_may_run_at_once_and_not_only_after_its_interval() -> None:
    scheduler = Scheduler(structlog.get_logger())
    first, later = threading.Event(), threading.Event()
    scheduler.add("first", 3600, first.set, at_once=True)
    scheduler.add("later", 3600, later.set)
    scheduler.start()
    assert first.wait(20)
    assert not later.is_set()
    scheduler.stop()


@pytest.mark.parametrize("end", [Scheduler.stop, Scheduler.pause])
def test_a_start_after_the_stop_starts_nothing(end: Callable[[Scheduler], None]) -> None:
    scheduler = Scheduler(structlog.get_logger())
    end(scheduler)
    scheduler.start()
    assert not scheduler._scheduler.running
