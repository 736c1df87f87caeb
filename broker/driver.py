"""The loop around the Raft core: frames, requests and time in; disk, network and answers out.

Everything that touches the core runs on the process's event loop. All events of one turn of the loop become one round:
its writes go to the writing thread as one job, messages that depend on them wait until they are on disk, the others
are sent at once.
"""

import asyncio
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from broker.loop_calls import call_on_loop
from broker.raft.configuration import GroupId, MemberId
from broker.raft.context import RaftSettings
from broker.raft.effects import Applied, Load, RaftRound, Role, RoleChanged, Send
from broker.raft.entry import LogEntry
from broker.raft.events import Campaign, Event, Loaded, Outcome, TransferLeadership, WriteSnapshot
from broker.raft.messages import Append, Envelope, Frame, Heartbeat, InstallSnapshot
from broker.raft.node import DiskSpace, Durable, GroupRequest, Node, NodeEvent
from broker.raft.snapshot import Stored
from broker.replica_status import ReplicaStatus, status_of
from broker.served import Served
from broker.storage.writer import Owed, Save, Writer, fail_stop
from myqueue.protocol.errors import RegistrationConflict, Unavailable
from service.logs import Log as Logger

T = TypeVar("T")

MAX_REPLAY = 50_000
_STALL_MS = 100
_STUCK_DISK_MS = 1000
_HANDOVER_LOOK_S = 0.02
_LOADING_THREADS = 2


class DriverCounts:
    def __init__(self) -> None:
        self.rounds = 0
        self.stalls = 0  # a timer of the loop fired more than 100 ms late
        self.refused_appends = 0  # Appends of leaders, because this disk is behind or almost full


class Driver:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        writer: Writer,
        send: Callable[[int, Frame], None],
        flush: Callable[[], None],
        logger: Logger,
        *,
        settings: RaftSettings | None = None,
        on_failure: Callable[[], None] = fail_stop,
    ) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._writer = writer
        self._transport_send = send
        self._transport_flush = flush
        self._logger = logger
        self._settings = settings or RaftSettings()
        self._on_failure = on_failure
        self._node: Node | None = None
        self._served: dict[GroupId, Served] = {}
        self._led: set[GroupId] = set()
        self._inbox: deque[NodeEvent] = deque()
        self._inbox_planned = False
        self._drain_planned = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0
        self._writing: deque[tuple[int, int]] = deque()  # rounds in flight to the disk: number, since when
        self._last_round = 0
        self._durable = 0
        self._held: dict[int, list[Send]] = {}  # by the round they wait for
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Callable[[Outcome], None]] = {}
        self._loading = ThreadPoolExecutor(_LOADING_THREADS, thread_name_prefix="raft-load")
        self._stopped = False
        self._disk_is_low = False
        self.on_lead: Callable[[], None] = lambda: None  # a replica has become a ready leader; must not block
        self.counts = DriverCounts()

    # Start and stop; on the loop

    @property
    def broker_id(self) -> int | None:
        return None if self._node is None else self._node.broker_id

    def begin(self, broker_id: int) -> None:
        """This process is that broker from here on."""
        if self._node is None:
            session = int.from_bytes(os.urandom(8), "little")
            seed = int.from_bytes(os.urandom(8), "little")
            self._node = Node(broker_id, session, seed, _now_ms(), self._settings)
            self._plan_drain()

    def open(self, group_id: GroupId, me: MemberId, stored: Stored, served: Served, *, campaign: bool = False) -> None:
        """`campaign`: this replica is to lead a new group, so it does not wait for the election timeout."""
        node = self._need_node()
        self._served[group_id] = served
        group = node.open(group_id, me, stored)
        served.applied(Applied(group_id, 0, group.applied, group.applied_offset))
        if campaign or group.configuration.voters == (me,):
            self._step(GroupRequest(group_id, Campaign()))
        self._plan_drain()

    def close(self, group_id: GroupId) -> None:
        self._need_node().close(group_id)
        served = self._served.pop(group_id, None)
        if served is not None:
            served.closed()
        self._led.discard(group_id)
        self._plan_drain()

    def close_all(self, group_ids: Sequence[GroupId]) -> None:
        for group_id in group_ids:
            self.close(group_id)

    async def transfer_all(self, timeout_s: float) -> None:
        """Transfer leadership of every group that another broker can lead, and wait a little for it."""
        node = self._node
        if node is None:
            return
        self.start_transfers()
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and any(
            len(node.groups[group_id].configuration.voters) > 1 for group_id in self._led
        ):
            await asyncio.sleep(_HANDOVER_LOOK_S)

    def start_transfers(self) -> None:
        """Start leadership transfers for all groups that this broker leads."""
        for group_id in list(self._led):
            self._step(GroupRequest(group_id, TransferLeadership()))

    def stop(self) -> None:
        """Nothing is sent or written any more."""
        self._stopped = True
        self._loading.shutdown(wait=False, cancel_futures=True)
        self._loop.call_soon_threadsafe(self._stop_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _need_node(self) -> Node:
        if self._node is None:
            raise Unavailable("the broker has no id yet: it is not registered", outcome="not_written")
        return self._node

    # From other threads

    def call(self, action: Callable[[], T]) -> T:
        if threading.get_ident() == self._loop_thread:
            return action()
        return call_on_loop(self._loop, action)

    def request(self, group_id: GroupId, make: Callable[[int], Event]) -> None:
        """Without waiting for the outcome. `make` gets the request's number."""
        self._need_node()
        number = next(self._numbers)
        self._waiting[number] = lambda _: None
        self._enqueue(GroupRequest(group_id, make(number)))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it on this thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def submit(self, group_id: GroupId, event: Event) -> None:
        """A request that has no answer."""
        self._enqueue(GroupRequest(group_id, event))

    def transfer(self, group_id: GroupId, broker_id: int | None) -> None:
        """To that broker, or to the voter that is furthest."""

        def find() -> MemberId | None:
            group = self._need_node().groups.get(group_id)
            voters = () if group is None else group.configuration.voters
            target = next((voter for voter in voters if voter.broker_id == broker_id), None)
            if broker_id is not None and target is None:
                raise RegistrationConflict(f"broker {broker_id} is no voter of the partition")
            if group is not None and target is not None and (why := group.membership.why_not_to(target)) is not None:
                raise RegistrationConflict(f"broker {broker_id} cannot lead now: {why}")
            return target

        self.submit(group_id, TransferLeadership(self.call(find)))

    def _enqueue(self, event: NodeEvent) -> None:
        self._inbox.append(event)
        if not self._inbox_planned:
            self._inbox_planned = True
            self._loop.call_soon_threadsafe(self._empty_inbox)

    def statuses(self, only: GroupId | None = None) -> dict[GroupId, ReplicaStatus]:
        def look() -> dict[GroupId, ReplicaStatus]:
            groups = {} if self._node is None else self._node.groups
            return {group_id: status_of(group) for group_id, group in groups.items() if only in (None, group_id)}

        return self.call(look)

    def applied_since_snapshot(self) -> dict[GroupId, int]:
        """How many entries a restart would have to replay."""

        def look() -> dict[GroupId, int]:
            return {
                group_id: group.applied - served.log.snapshot_index
                for group_id, served in self._served.items()
                if (group := self._need_node().groups.get(group_id)) is not None
            }

        return self.call(look)

    def write_snapshots(self, max_replay: int = MAX_REPLAY) -> None:
        """Write snapshot records so that a restart replays at most so many entries, over all partitions together."""
        behind = self.applied_since_snapshot()
        total = sum(behind.values())
        for group_id, entries in sorted(behind.items(), key=lambda item: -item[1]):
            if total <= max_replay:
                return
            self.submit(group_id, WriteSnapshot())
            total -= entries

    # Steps; on the loop

    def propose(self, group_id: GroupId, make: Callable[[int], Event], timeout_s: float) -> "asyncio.Future[Outcome]":
        """The future gets the outcome, or TimeoutError; `make` gets the request's number."""
        self._need_node()
        if self._disk_is_low:
            self._update_disk_space()  # room is used as soon as it is there
        number = next(self._numbers)
        future: asyncio.Future[Outcome] = self._loop.create_future()

        def expire() -> None:
            if not future.done():
                future.set_exception(TimeoutError())

        # Cheaper than asyncio.timeout, which is a context and a cancellation for each request.
        expiry = self._loop.call_later(max(0.0, timeout_s), expire)

        def resolve(outcome: Outcome) -> None:
            expiry.cancel()
            if not future.done():  # its caller has timed out
                future.set_result(outcome)

        self._waiting[number] = resolve
        self._step(GroupRequest(group_id, make(number)))
        return future

    def receive(self, frame: Frame) -> None:
        if self._node is None or self._stopped:
            return
        if isinstance(frame, Envelope) and isinstance(frame.message, Append | InstallSnapshot):
            self._update_disk_space()
            if isinstance(frame.message, InstallSnapshot):
                if not self._writer.takes_snapshots():
                    return  # it is sent again
            elif frame.message.entries and not self._writer.takes_entries():
                self.counts.refused_appends += 1
                self._guarded(lambda node: node.refuse(frame, _now_ms()))
                return
        self._step(frame)

    def _update_disk_space(self) -> None:
        is_low = self._writer.is_low()
        if is_low != self._disk_is_low:
            self._disk_is_low = is_low
            self._step(DiskSpace(is_low))

    def check_disk_space(self) -> None:
        """From any thread, now and then: leaders here and elsewhere are to see a disk that fills up or heals."""
        self.call(self._update_disk_space if self._node is not None else lambda: None)

    def _empty_inbox(self) -> None:
        self._inbox_planned = False
        while self._inbox:
            self._step(self._inbox.popleft())

    def _step(self, event: NodeEvent) -> None:
        if self._stopped:
            return
        node = self._need_node()
        try:
            node.step(event, _now_ms())
        except Exception:
            self._fail()
            raise
        self._plan_drain()

    def _guarded(self, action: Callable[[Node], None]) -> None:
        node = self._need_node()
        try:
            action(node)
        except Exception:
            self._fail()
            raise
        self._plan_drain()

    def _fail(self) -> None:
        """Inconsistent state, or a round that was carried out in part, must not be used."""
        self._logger.exception("replication cannot go on; the process stops")
        self._on_failure()

    def _plan_drain(self) -> None:
        if not self._drain_planned:
            self._drain_planned = True
            self._loop.call_soon(self._drain)

    def _on_time(self) -> None:
        self._timer = None
        if _now_ms() - self._timer_due > _STALL_MS:
            self.counts.stalls += 1
        self._step(None)

    def _plan_timer(self) -> None:
        due = self._need_node().next_due()
        if due is None or (self._timer is not None and self._timer_due <= due):
            return  # a timer that fires too early does no harm
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_later(max(0, due - _now_ms()) / 1000, self._on_time)

    # Rounds; on the loop

    def _drain(self) -> None:
        self._drain_planned = False
        if self._stopped:
            return
        node = self._need_node()
        try:
            round_ = node.drain()
            self._last_round = round_.number
            if round_:
                self.counts.rounds += 1
            self._carry_out(round_)
        except Exception:
            self._fail()
            raise
        self._plan_timer()

    def _carry_out(self, round_: RaftRound) -> None:
        """What the followers wait for goes first: their way to an acknowledgement is the longer one."""
        if not round_.persists and not self._writing:
            self._durable = round_.number
        for send in round_.sends:
            if send.after <= self._durable:
                self._send(send)
            else:
                self._held.setdefault(send.after, []).append(send)
        if round_.sends:
            self._transport_flush()
        if round_.persists:
            self._save(round_)
        for applied in round_.applied:
            if served := self._served.get(applied.group):
                served.applied(applied)
        for committed in round_.committed:
            if served := self._served.get(committed.group):
                served.committed(committed)
        for dropped in round_.dropped:
            if served := self._served.get(dropped.group):
                served.dropped(dropped)
        for change in round_.roles:
            self._role_changed(change)
        for _, request, outcome in round_.resolved:
            self._waiting.pop(request)(outcome)
        for load in round_.loads:
            self._load(load)

    def _role_changed(self, change: RoleChanged) -> None:
        served = self._served.get(change.group)
        if served is None:
            return
        if change.role is Role.LEADER:
            self._led.add(change.group)
        else:
            self._led.discard(change.group)
        served.role_changed(change)
        if change.ready:
            self.on_lead()

    def _save(self, round_: RaftRound) -> None:
        owed = [Owed(self._served[persist.group].log, persist) for persist in round_.persists]
        self._writing.append((round_.number, _now_ms()))
        number = round_.number
        self._writer.enqueue(Save(owed), lambda _: self._loop.call_soon_threadsafe(self._saved, number))

    def _saved(self, number: int) -> None:
        if self._stopped:
            return
        while self._writing and self._writing[0][0] <= number:
            self._writing.popleft()
        # A round without writes is durable when those before it are.
        self._durable = self._writing[0][0] - 1 if self._writing else self._last_round
        if self._held:
            for after in sorted(after for after in self._held if after <= self._durable):
                for send in self._held.pop(after):
                    self._send(send)
            self._transport_flush()
        self._step(Durable(self._durable))

    def _send(self, send: Send) -> None:
        if self._stopped or (isinstance(send.frame, Heartbeat) and self._disk_is_stuck()):
            return
        self._transport_send(send.broker_id, send.frame)

    def _disk_is_stuck(self) -> bool:
        """A leader whose disk does not answer stops its heartbeats, so that another broker takes over."""
        return bool(self._writing) and _now_ms() - self._writing[0][1] > _STUCK_DISK_MS

    def _load(self, load: Load) -> None:
        served = self._served.get(load.group)
        if served is None:
            return
        future = self._loading.submit(served.read_entries, load.first_index, load.max_bytes)
        future.add_done_callback(partial(self._loaded, load))

    def _loaded(self, load: Load, future: "Future[tuple[LogEntry, ...] | None]") -> None:
        """On a loading thread."""
        if future.cancelled():
            return
        entries = future.result() or ()  # none: cut meanwhile, or not readable here; the core asks again later
        self._enqueue(GroupRequest(load.group, Loaded(load.to, load.first_index, entries)))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
