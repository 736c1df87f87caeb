"""Tells the write manager that this read manager is alive, and remembers whether it was heard."""

from myqueue.protocol.errors import MyQueueError
from read_manager.write_manager_calls import WriteManagerCalls
from service.logs import Log


class Heartbeat:
    def __init__(self, write_manager: WriteManagerCalls, log: Log, name: str, endpoint: str) -> None:
        self._write_manager = write_manager
        self._log = log
        self._name = name
        self._endpoint = endpoint
        self._heard: bool | None = None

    def beat(self) -> None:
        try:
            self._write_manager.heartbeat({"name": self._name, "endpoint": self._endpoint})
        except MyQueueError as error:
            if self._heard is not False:
                self._log.warning("write manager does not hear heartbeats", why=error.message)
            self._heard = False
            return
        if not self._heard:
            self._log.info("write manager hears heartbeats")
        self._heard = True

    def problem(self) -> str | None:
        return None if self._heard else "does not hear heartbeats"
