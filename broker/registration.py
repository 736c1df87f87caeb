"""Tells the write manager that this broker is here and what it holds: registers, then sends heartbeats."""

import socket
import time
from collections.abc import Callable

from broker.partitions import Partitions
from myqueue.protocol import internal
from myqueue.protocol.errors import BrokerNotFound, MyQueueError
from myqueue.protocol.internal import BrokerHeartbeat, BrokerRegistered, BrokerRegistration, PartitionReport
from service.calls import Caller
from service.heartbeat import Every
from service.logs import Log

_JOB = "heartbeat"
_MISSED_BEATS = 3


class Registration:
    """The broker works without it; nobody else knows of its partitions then."""

    def __init__(
        self,
        caller: Caller,
        every: Every,
        partitions: Partitions,
        log: Log,
        *,
        write_manager_url: str,
        endpoint: str,
        broker_id: int | None,
        incarnation: str,
        interval_s: float,
        keep_broker_id: Callable[[int], None],
    ) -> None:
        self._caller = caller
        self._every = every
        self._partitions = partitions
        self._log = log
        self._url = write_manager_url
        self._endpoint = endpoint
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._interval_s = interval_s
        self._keep_broker_id = keep_broker_id
        self._registered = False
        self._reported: dict[tuple[str, int], PartitionReport] = {}
        self._answered_at: float | None = None
        self._last_problem: str | None = None

    def start(self) -> None:
        self._every.add(_JOB, self._interval_s, self.beat)
        self.beat()

    def stop(self) -> None:
        """The scheduler that runs the heartbeats has stopped before."""
        self._caller.close()

    def beat(self) -> None:
        try:
            self._send()
        except MyQueueError as error:
            if error.message != self._last_problem:
                self._log.warning("the write manager did not take the heartbeat", error=error.message)
            self._last_problem = error.message
            return
        self._answered_at = time.monotonic()
        self._last_problem = None

    def _send(self) -> None:
        if self._registered:
            try:
                self._send_heartbeat()
            except BrokerNotFound:
                self._log.warning("the write manager does not know this broker any more")
                self._registered = False
            else:
                return
        self._register()

    def _register(self) -> None:
        partitions = self._partitions.reports()
        request: BrokerRegistration = {
            "broker_id": self._broker_id,
            "endpoint": self._endpoint,
            "hostname": socket.gethostname(),
            "incarnation": self._incarnation,
            "partitions": partitions,
        }
        answer: BrokerRegistered = self._caller.json("POST", self._url + internal.REGISTER_BROKER, request)
        if answer["broker_id"] != self._broker_id:
            self._keep_broker_id(answer["broker_id"])
            self._broker_id = answer["broker_id"]
        self._reported = _by_name(partitions)
        self._registered = True
        self._log.info("registered", broker_id=self._broker_id, partitions=len(partitions))
        if answer["heartbeat_interval_s"] != self._interval_s:
            self._interval_s = answer["heartbeat_interval_s"]
            self._every.add(_JOB, self._interval_s, self.beat)

    def _send_heartbeat(self) -> None:
        now = _by_name(self._partitions.reports())
        changed = [report for name, report in now.items() if self._reported.get(name) != report]
        request: BrokerHeartbeat = {"incarnation": self._incarnation, "partitions": changed}
        path = internal.BROKER_HEARTBEAT.format(broker_id=self._broker_id)
        self._caller.json("POST", self._url + path, request)
        self._reported = now

    def problem(self) -> str | None:
        """Why the rest of the cluster may not know of this broker."""
        if self._answered_at is None:
            return self._last_problem or "not registered with the write manager yet"
        silent_s = time.monotonic() - self._answered_at
        if silent_s > _MISSED_BEATS * self._interval_s:
            return f"no answer of the write manager for {silent_s:.1f} s: {self._last_problem}"
        return None


def _by_name(reports: list[PartitionReport]) -> dict[tuple[str, int], PartitionReport]:
    return {(report["topic_id"], report["partition_id"]): report for report in reports}
