"""A broker's process around the core: a driver as simple as can be, on a simulated disk and clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.raft.configuration import GroupId, MemberId
from broker.raft.context import RaftSettings
from broker.raft.effects import RaftRound, Resolved, Send
from broker.raft.entry import LogEntry
from broker.raft.events import Event, Loaded, Outcome, StopLeading
from broker.raft.messages import Envelope
from broker.raft.node import DiskSpace, Durable, GroupRequest, NodeEvent
from broker.raft.snapshot import HardState, Snapshot
from tests.simulation.checks import Violation
from tests.simulation.disk import Disk, GroupFile, is_install

if TYPE_CHECKING:
    from broker.raft.node import Node
    from tests.simulation.world import World

# Small limits, so that a short run meets every border.
SETTINGS = RaftSettings(
    append_bytes=250,
    probe_bytes=100,  # one entry: an older one can get through without the next
    window_messages=4,
    window_bytes=1200,
    tail_bytes=500,
    pending_bytes=4000,
    pending_bytes_total=6000,
    promote_lag=4,
    keys_window=120,
    producers_window=12,
    batches_window=3,
)

Answer = Callable[[Outcome, int], None]


class SimBroker:
    """Steps, rounds, one write at a time, frames held until they may go."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.id = broker_id
        self.disk = Disk(install_lags=world.bug.installs_late)
        self.node: Node | None = None
        self.run = 0  # counts starts, so that events for a dead process are dropped
        self.paused = False
        self.backlog: list[NodeEvent] = []
        # Safety may not depend on clocks: in some runs they go wild, and only the lease is no longer checked.
        self.rate = world.rng.uniform(0.3, 3.0) if world.wild_clocks else world.rng.uniform(0.98, 1.02)
        self.rate_since = 0
        self.clock_start = world.rng.randrange(1_000_000)
        self.wall_offset = 0
        self.held: list[Send] = []
        self.durable = 0
        self.answers: dict[int, tuple[GroupId, Answer]] = {}
        self.unapplied: dict[GroupId, list[LogEntry]] = {}  # committed, readable from memory
        self.wake_at: int | None = None

    def now(self) -> int:
        return self.clock_start + int((self.world.time - self.rate_since) * self.rate) // 1000

    def set_rate(self, rate: float) -> None:
        self.clock_start = self.now()
        self.rate_since = self.world.time
        self.rate = rate
        self.wake_at = None

    def wall(self) -> int:
        return 1_700_000_000_000 + self.world.time // 1000 + self.wall_offset

    # Life and death

    def start(self) -> None:
        world = self.world
        self.run += 1
        self.paused = False
        self.backlog = []
        self.held = []
        self.durable = 0
        self.unapplied = {}
        self.wake_at = None
        make = world.bug.node_type
        node = make(self.id, world.fresh(), world.rng.getrandbits(64), self.now(), SETTINGS, world.bug.group_type)
        self.node = node
        if not world.bug.believes_page_cache:
            # A power loss would take what a killed process has written and not synced: it counts from here on only.
            self.disk.sync()
        elif self.disk.cached:
            world.later(world.rng.randrange(1_000_000, 8_000_000), self._written_back)
        for group_id, file in list(self.disk.readable().items()):
            if file.damaged and world.bug.rebuilds_at_once:
                world.lost.add(file.me)
                self.disk.drop(group_id)
                file = self.disk.files[group_id] = world.empty_file(self.id)
            if file.has_hole():
                raise Violation("log without holes", f"{file.me} finds entries that do not follow its log start")
            if not file.unreadable:
                node.open(group_id, file.me, file.stored())
                if file.bad:
                    node.step(GroupRequest(group_id, StopLeading()), self.now())
        node.step(DiskSpace(self.disk.low), self.now())
        self.settle()

    def crash(self, *, power: bool = False) -> None:
        rng = self.world.rng
        self.node = None
        self.run += 1
        written = rng.randint(0, len(self.disk.in_flight))
        self.disk.kill(written, rng.randint(0, written))
        if power:
            self.disk.lose_power()
        self.answers = {}

    def _written_back(self) -> None:
        """The kernel writes old pages by itself, sooner or later."""
        self.disk.sync()

    # Damage and full disks

    def damage(self, group_id: GroupId, index: int) -> None:
        """A batch cannot be read any more; a read or the scrubber finds out."""
        self.disk.files[group_id].bad.add(index)
        self.handle(GroupRequest(group_id, StopLeading()))

    def damage_journal(self) -> None:
        """Only while it is down."""
        for file in self.disk.files.values():
            file.unreadable = True

    def repair(self, group_id: GroupId) -> None:
        """What could not be read was set aside and is found to be whole."""
        file = self.disk.files[group_id]
        file.bad.clear()
        if file.unreadable:
            file.unreadable = False
            if self.node is not None:
                self.node.open(group_id, file.me, file.stored())
                self.settle()

    def set_space(self, *, low: bool, refuses: bool) -> None:
        self.disk.low, self.disk.refuses = low, refuses
        self.handle(DiskSpace(low))

    def erase(self) -> None:
        """Only while it is down: the data folder is gone, every replica comes back as another member."""
        for group_id, file in list(self.disk.files.items()):
            self.world.lost.add(file.me)
            self.disk.drop(group_id)
            self.disk.files[group_id] = self.world.empty_file(self.id)
            if self.world.bug.keeps_identity:
                self.disk.files[group_id] = GroupFile(file.me, HardState(), self.world.founded[group_id])

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        backlog, self.backlog = self.backlog, []
        for event in backlog:
            self.handle(event)
        self.handle(None)

    def join(self, group_id: GroupId) -> None:
        """Hold a replica of a group that exists: it knows no member until the leader sends the configuration."""
        file = self.disk.files[group_id] = self.world.empty_file(self.id)
        if self.node is not None:
            self.node.open(group_id, file.me, file.stored())
            self.settle()

    def leave(self, group_id: GroupId) -> None:
        self.disk.drop(group_id)
        if self.node is not None:
            self.node.close(group_id)
            self.settle()

    # Steps

    def handle(self, event: NodeEvent) -> None:
        if self.node is None:
            return
        if self.paused:
            self.backlog.append(event)
            return
        if isinstance(event, Envelope) and self.disk.refuses:
            self.node.refuse(event, self.now())
        else:
            self.node.step(event, self.now())
        if self.world.rng.random() < 0.85:
            self.settle()
        else:
            self.world.later(self.world.rng.randrange(100, 3000), self._settle_run, self.run)

    def _settle_run(self, run: int) -> None:
        if run == self.run and not self.paused:
            self.settle()

    def settle(self) -> None:
        node = self.node
        if node is None:
            return
        round_ = node.drain()
        if round_:
            self.world.observe(self, node, round_)
            self._carry_out(round_)
        due = node.next_due()
        if due is not None:
            at = self.rate_since + int(((due - self.clock_start) * 1000 + 999) / self.rate) + 1
            if self.wake_at is None or at < self.wake_at or self.wake_at <= self.world.time:
                self.wake_at = max(at, self.world.time)
                self.world.at(self.wake_at, self._wake, self.run)

    def _wake(self, run: int) -> None:
        if run == self.run:
            self.wake_at = None
            self.handle(None)

    def _carry_out(self, round_: RaftRound) -> None:
        world = self.world
        if round_.persists:
            self.disk.waiting.append(round_)
        elif not self.disk.waiting and not self.disk.in_flight:
            self.durable = round_.number
        for send in round_.sends:
            if send.after <= self.durable:
                world.transmit(self, send)
            else:
                self.held.append(send)
        self._sync()
        for group_id, _, entries in round_.committed:
            self.unapplied.setdefault(group_id, []).extend(entries)
        for load in round_.loads:
            delay = world.load_delay()
            if delay is not None:
                world.later(delay, self._load, self.run, load.group, load.to, load.first_index)
        for resolved in round_.resolved:
            self._answer(resolved)

    def _sync(self) -> None:
        world = self.world
        if self.disk.begin():
            world.later(world.rng.randrange(300, 5000) * self.disk.delay_factor, self._synced, self.run)

    def _synced(self, run: int) -> None:
        if run != self.run:
            return
        if self.paused:  # a stopped process does not see that its write is done
            self.world.later(20_000, self._synced, run)
            return
        rounds = self.disk.finish()
        if self.world.bug.skips_fsync or self.disk.cached:
            self.disk.cached.extend(rounds)
            self.world.later(400_000, self._written_back)
        else:
            self.disk.write(rounds)
        self._write_snapshots(rounds)
        self.durable = rounds[-1].number
        free = [send for send in self.held if send.after <= self.durable]
        self.held = [send for send in self.held if send.after > self.durable]
        for send in free:
            self.world.transmit(self, send)
        self._sync()
        self.handle(Durable(rounds[-1].number))

    def _write_snapshots(self, rounds: list[RaftRound]) -> None:
        """Those of retention cuts are files of their own, named later: until then a start finds the one before."""
        world = self.world
        for persist in (persist for round_ in rounds for persist in round_.persists):
            if persist.snapshot is not None and (not is_install(persist) or world.bug.installs_late):
                file = self.disk.files.get(persist.group)
                if file is not None:
                    delay = world.rng.randrange(1_000, 1_000_000)
                    world.later(delay, self._snapshot_written, self.run, file, persist.snapshot)

    def _snapshot_written(self, run: int, file: GroupFile, snapshot: Snapshot) -> None:
        if run == self.run:
            file.write_snapshot(snapshot)

    def _load(self, run: int, group_id: GroupId, to: MemberId, first: int) -> None:
        if run != self.run:
            return
        file = self.disk.files.get(group_id)
        entries: list[LogEntry] = []
        if file is not None and not self.world.load_fails():
            entries = file.read(first, 3)
        self.handle(GroupRequest(group_id, Loaded(to, first, tuple(entries))))

    # Requests

    def ask(self, group_id: GroupId, request: int, event: Event, answer: Answer) -> None:
        if self.node is None:
            return
        self.answers[request] = (group_id, answer)
        self.handle(GroupRequest(group_id, event))

    def _answer(self, resolved: Resolved) -> None:
        waiting = self.answers.pop(resolved.request, None)
        group = self.node.groups.get(resolved.group) if self.node is not None else None
        if waiting is not None:
            waiting[1](resolved.outcome, group.term if group is not None else 0)
