"""Tells the write manager that this read manager is alive, or leaves, and remembers whether it was heard."""

import asyncio
import threading

from myqueue.protocol.errors import MyQueueError
from read_manager.write_manager_calls import WriteManagerCalls
from service.logs import Log

GOODBYE_TIMEOUT_S = 2.0


class Heartbeat:
    def __init__(self, write_manager: WriteManagerCalls, log: Log, name: str, endpoint: str, *, leave_s: float) -> None:
        self._write_manager = write_manager
        self._log = log
        self._name = name
        self._endpoint = endpoint
        self._leave_s = leave_s
        self._speaking = threading.Lock()  # no heartbeat after the one that says goodbye
        self._leaving = False
        self._heard: bool | None = None

    def beat(self) -> None:
        try:
            with self._speaking:
                if self._leaving:
                    return
                self._write_manager.heartbeat({"name": self._name, "endpoint": self._endpoint})
        except MyQueueError as error:
            if self._heard is not False:
                self._log.warning("write manager does not hear heartbeats", why=error.message)
            self._heard = False
            return
        if not self._heard:
            self._log.info("write manager hears heartbeats")
        self._heard = True

    async def leave(self) -> None:
        """Requests still come until the load balancer has heard of it: they are to find somebody."""
        try:
            await asyncio.wait_for(asyncio.to_thread(self._say_goodbye), GOODBYE_TIMEOUT_S)
        except (MyQueueError, TimeoutError) as error:
            self._log.warning("write manager did not hear that this one leaves", why=str(error))
            return
        await asyncio.sleep(self._leave_s)

    def _say_goodbye(self) -> None:
        with self._speaking:
            self._leaving = True
            self._write_manager.heartbeat({"name": self._name, "endpoint": self._endpoint, "leaving": True})

    def problem(self) -> str | None:
        return None if self._heard else "does not hear heartbeats"
