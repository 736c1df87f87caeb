"""The interval of heartbeats is the one that the write manager answers."""

from collections.abc import Callable
from typing import cast

import structlog

from myqueue.protocol.errors import ManagerUnavailable
from myqueue.protocol.internal import ManagerHeartbeat, ManagerHeartbeatAnswer
from read_manager.heartbeat import FIRST_INTERVAL_S, Heartbeat
from read_manager.write_manager_client import WriteManagerClient
from service.scheduler import Scheduler


class WriteManager:
    answer: ManagerHeartbeatAnswer | None = None

    def heartbeat(self, _: ManagerHeartbeat) -> ManagerHeartbeatAnswer:
        if self.answer is None:
            raise ManagerUnavailable()
        return self.answer


class Intervals:
    def __init__(self) -> None:
        self.scheduled: list[float] = []

    def add(self, _: str, seconds: float, __: Callable[[], None]) -> None:
        self.scheduled.append(seconds)


def test_the_write_managers_interval_is_obeyed_and_kept_until_it_changes() -> None:
    manager, intervals = WriteManager(), Intervals()
    heartbeat = Heartbeat(
        cast(WriteManagerClient, manager), cast(Scheduler, intervals), structlog.get_logger(), "r", "e", leave_s=0
    )
    heartbeat.schedule()
    heartbeat.send()
    assert intervals.scheduled == [FIRST_INTERVAL_S], "while there is no answer"
    for interval_s in (0.2, 0.2, 0.5):
        manager.answer = {"status": "success", "heartbeat_interval_s": interval_s}
        heartbeat.send()
    manager.answer = {"status": "success"}
    heartbeat.send()
    assert intervals.scheduled == [FIRST_INTERVAL_S, 0.2, 0.5]
