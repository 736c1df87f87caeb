"""Heartbeats to the write manager with the status of this broker's replicas; the first request registers it."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from broker.command_fence import CommandFence
from broker.peers.handshake import DataFolder
from broker.retention import SharedClock
from myqueue.protocol import internal
from myqueue.protocol.errors import BrokerNotFound, MyQueueError, StaleDataFolder
from myqueue.protocol.internal import (
    BrokerHeartbeat,
    BrokerRegistered,
    BrokerRegistration,
    HeartbeatAnswer,
    PartitionReport,
    Peer,
)
from service.active_manager import FOLLOW_INTERVAL_S, ManagerCaller
from service.logs import Log
from service.scheduler import Scheduler

_JOB = "heartbeat"
_REGISTER_INTERVAL_S = 1.0  # between attempts to register; heartbeats at the interval that the write manager answers
_MISSED_HEARTBEATS = 3
_SEND_SOON_S = 0.02  # events that happen together share a heartbeat


class Reporting(Protocol):
    def reports(self) -> list[PartitionReport]: ...


class WriteManagerHeartbeat:
    """The broker works without it, but its partitions are unknown to the other processes."""

    def __init__(
        self,
        managers: ManagerCaller,
        scheduler: Scheduler,
        partitions: Reporting,
        log: Log,
        *,
        endpoint: str,
        raft_address: str,
        data_address: str,
        broker_id: int | None,
        folder: Callable[[], DataFolder],
        found_sequence: int,
        sequence: Callable[[], int],
        keep_broker_id: Callable[[int], None],
        set_peers: Callable[[list[Peer]], None],
        registered: Callable[[int], None],
        refuted: Callable[[int, str], None],
        unreachable: Callable[[], None],
        clock: SharedClock,
        fence: CommandFence,
    ) -> None:
        """`keep_broker_id` gets the id that the write manager assigned, `set_peers` all registered brokers.

        `found_sequence` is that of the last journal frame that this start found, `sequence` that of the last one that
        is synced. `registered` gets the incarnation that was taken; `refuted` the one that is an older copy, and why:
        when it returns, `folder` is another incarnation, which is registered next. `unreachable`: the write manager
        could not be asked.
        """
        self._managers = managers
        self._scheduler = scheduler
        self._partitions = partitions
        self._log = log
        self._endpoint = endpoint
        self._raft_address = raft_address
        self._data_address = data_address
        self._broker_id = broker_id
        self._folder = folder
        self._found_sequence = found_sequence
        self._sequence = sequence
        self._taken = registered
        self._refuted = refuted
        self._unreachable = unreachable
        self._interval_s = _REGISTER_INTERVAL_S
        self._keep_broker_id = keep_broker_id
        self._set_peers = set_peers
        self._clock = clock
        self._fence = fence
        self._sending = threading.Lock()
        self._send_planned = False
        self._registered_with: tuple[str, int] | None = None  # a write manager, and its epoch
        self._reported: dict[tuple[str, int], PartitionReport] = {}
        self._answered_at: float | None = None
        self._last_problem: str | None = None
        self._logged: type[MyQueueError] | None = None

    def start(self) -> None:
        self._scheduler.add(_JOB, self._interval_s, self.send)
        self._scheduler.add("write manager", FOLLOW_INTERVAL_S, self._managers.follow)
        self.send()

    def stop(self) -> None:
        """The scheduler that runs the heartbeats has stopped already."""
        self._managers.close()

    def send_soon(self) -> None:
        """Instead of at the next interval. Called when a replica here becomes the leader or is found damaged."""
        if not self._send_planned:
            self._send_planned = True
            timer = threading.Timer(_SEND_SOON_S, self.send)
            timer.daemon = True
            timer.start()

    def send(self) -> None:
        with self._sending:
            self._send_planned = False
            try:
                self._register_or_report()
            except MyQueueError as error:
                if type(error) is not self._logged:  # messages alternate while another one takes over
                    self._log.warning("the write manager did not take the heartbeat", error=error.message)
                self._logged = type(error)
                self._last_problem = error.message
                if self._registered_with is None and not isinstance(error, StaleDataFolder):
                    self._unreachable()
                return
            self._answered_at = time.monotonic()
            self._last_problem = self._logged = None

    def _register_or_report(self) -> None:
        if self._registered_with is not None:
            try:
                self._send_heartbeat()
            except BrokerNotFound:
                self._log.warning("this broker is no longer registered with the write manager")
            else:
                if self._managers.active.identity == self._registered_with:
                    return
                # What was reported to the one before, this one may not have stored.
                self._log.info("another write manager is active")
            self._registered_with = None
        self._register()

    def _register(self) -> None:
        folder, partitions = self._folder(), self._partitions.reports()
        request: BrokerRegistration = {
            "broker_id": self._broker_id,
            "endpoint": self._endpoint,
            "raft_address": self._raft_address,
            "data_address": self._data_address,
            "hostname": socket.gethostname(),
            "incarnation": f"{folder.incarnation:016x}",
            "starts": folder.starts,
            "session": f"{folder.session:016x}",
            "sequence": self._found_sequence,
            "epoch": self._fence.epoch,
            "clock_ms": self._clock.now_ms(),
            "partitions": partitions,
        }
        try:
            answer: BrokerRegistered = self._managers.json(
                internal.REGISTER_BROKER.method, internal.REGISTER_BROKER.path, request
            )
        except StaleDataFolder as error:
            known = f"the write manager knows {error.details.get('starts')} starts of it and frame "
            known += f"{error.details.get('sequence')}, here are {folder.starts} and {self._found_sequence}"
            self._refuted(folder.incarnation, f"{error.message}; {known}")
            raise
        if "epoch" in answer:
            self._fence.hear_of(answer["epoch"])  # an older write manager's answer is not used
        self._taken(folder.incarnation)
        if answer["broker_id"] != self._broker_id:
            self._keep_broker_id(answer["broker_id"])
            self._broker_id = answer["broker_id"]
        self._set_peers(answer["peers"])
        self._clock.set_median(answer["clock_ms"])
        self._reported = _by_name(partitions)
        self._registered_with = self._managers.active.identity
        self._log.info("registered", broker_id=self._broker_id, partitions=len(partitions))
        if answer["heartbeat_interval_s"] != self._interval_s:
            self._interval_s = answer["heartbeat_interval_s"]
            self._scheduler.add(_JOB, self._interval_s, self.send)

    def _send_heartbeat(self) -> None:
        folder, now = self._folder(), _by_name(self._partitions.reports())
        changed = [report for name, report in now.items() if self._reported.get(name) != report]
        request: BrokerHeartbeat = {
            "incarnation": f"{folder.incarnation:016x}",
            "session": f"{folder.session:016x}",
            "sequence": self._sequence(),
            "clock_ms": self._clock.now_ms(),
            "partitions": changed,
        }
        route = internal.BROKER_HEARTBEAT
        path = route.path_for(broker_id=self._broker_id)
        answer: HeartbeatAnswer = self._managers.json(route.method, path, request)
        self._set_peers(answer["peers"])
        self._clock.set_median(answer["clock_ms"])
        self._reported = now

    def problem(self) -> str | None:
        """Why this broker's partitions may be unknown to the rest of the cluster."""
        if self._answered_at is None:
            return self._last_problem or "not registered with the write manager yet"
        silent_s = time.monotonic() - self._answered_at
        if silent_s > _MISSED_HEARTBEATS * self._interval_s:
            return f"no answer of the write manager for {silent_s:.1f} s: {self._last_problem}"
        return None


def _by_name(reports: list[PartitionReport]) -> dict[tuple[str, int], PartitionReport]:
    return {(report["topic_id"], report["partition_id"]): report for report in reports}
