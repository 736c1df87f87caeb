"""Heartbeats to the write manager; the last one, with `leaving`, deregisters this read manager."""

import asyncio
import threading

from myqueue.protocol.errors import MyQueueError
from read_manager.write_manager_client import WriteManagerClient
from service.logs import Log
from service.scheduler import Scheduler

LEAVE_TIMEOUT_S = 2.0
FIRST_INTERVAL_S = 1.0  # until the write manager's first answer sets the interval


class Heartbeat:
    def __init__(
        self,
        write_manager: WriteManagerClient,
        scheduler: Scheduler,
        log: Log,
        name: str,
        endpoint: str,
        *,
        leave_s: float,
    ) -> None:
        self._write_manager = write_manager
        self._scheduler = scheduler
        self._log = log
        self._name = name
        self._endpoint = endpoint
        self._leave_s = leave_s
        self._sending = threading.Lock()  # no heartbeat may follow the one with `leaving`
        self._leaving = False
        self._acknowledged: bool | None = None
        self._interval_s = FIRST_INTERVAL_S

    def schedule(self) -> None:
        self._scheduler.add("heartbeat", self._interval_s, self.send)

    def send(self) -> None:
        try:
            with self._sending:
                if self._leaving:
                    return
                answer = self._write_manager.heartbeat({"name": self._name, "endpoint": self._endpoint})
        except MyQueueError as error:
            if self._acknowledged is not False:
                self._log.warning("write manager does not answer heartbeats", why=error.message)
            self._acknowledged = False
            return
        if not self._acknowledged:
            self._log.info("write manager answers heartbeats")
        self._acknowledged = True
        interval_s = answer.get("heartbeat_interval_s", self._interval_s)
        if interval_s != self._interval_s:
            self._interval_s = interval_s
            self.schedule()

    async def leave(self) -> None:
        """Serves on for a while: requests still come until the load balancer has read the new list of managers."""
        try:
            await asyncio.wait_for(asyncio.to_thread(self._send_leaving), LEAVE_TIMEOUT_S)
        except (MyQueueError, TimeoutError) as error:
            self._log.warning("write manager did not answer the last heartbeat before leaving", why=str(error))
            return
        await asyncio.sleep(self._leave_s)

    def _send_leaving(self) -> None:
        with self._sending:
            self._leaving = True
            self._write_manager.heartbeat({"name": self._name, "endpoint": self._endpoint, "leaving": True})

    def problem(self) -> str | None:
        return None if self._acknowledged else "does not answer heartbeats"
