"""Time, network and brokers of one simulated cluster. Everything random comes from one generator."""

import heapq
import random
import zlib
from collections.abc import Callable
from typing import Any
from uuid import UUID

from broker.raft.configuration import NO_MEMBERS, GroupId, MemberId, initial_configuration
from broker.raft.context import InvariantBroken
from broker.raft.effects import RaftRound, Role, Send
from broker.raft.entry import Kind
from broker.raft.group import RaftGroup
from broker.raft.messages import Envelope, Frame
from broker.raft.node import Node
from broker.raft.snapshot import HardState, Snapshot, new_replica
from tests.simulation.bugs import Bug, Profile
from tests.simulation.checks import Checks, Violation
from tests.simulation.disk import GroupFile, is_install
from tests.simulation.network import Network
from tests.simulation.process import SimBroker

_LOOK_AT_LEADERS = 250_000
_RESIGNS_WITHIN = 3_000_000


class World:
    def __init__(self, seed: int, bug: Bug, *, contract: bool) -> None:
        self.rng = random.Random(seed)
        self.bug = bug
        self.time = 0  # µs
        self.steps = 0
        self.trace = 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._fresh = 0
        self.profile = bug.profile or self.rng.choice(list(Profile))
        self.network = Network(self.rng, self.profile)
        self.wild_clocks = self.profile is Profile.WILD_CLOCKS
        self.checks = Checks(contract=contract, lease=not self.wild_clocks)
        self.on_election: Callable[[SimBroker], None] | None = None
        self.on_commit: Callable[[SimBroker], None] | None = None
        self.on_change: Callable[[SimBroker], None] | None = None
        names = ("elections", "acknowledged", "crashes", "snapshots", "changes", "cuts", "damaged", "rebuilt", "full")
        self.stats = dict.fromkeys((*names, "unapplied"), 0)  # unapplied: shown before the own disk had it
        self.failing_loads = self.rng.choice((0.0, 0.1, 0.3))
        small = self.profile is Profile.AMBUSH
        size = 3 if small else self.rng.choice((3, 3, 4, 5))
        self.brokers = {n: SimBroker(self, n) for n in range(1, size + 1)}
        self.placement: dict[GroupId, list[int]] = {}
        for partition in range(1 if small else self.rng.randint(1, 3)):
            few = (2, 2, 3) if self.profile is Profile.DAMAGE else (3,) if small else (2, 3, 3, 3)
            replicas = 5 if size == 5 and self.rng.random() < 0.5 else self.rng.choice(few)
            self.placement[GroupId(UUID(int=7), partition)] = sorted(self.rng.sample(sorted(self.brokers), replicas))
        self.founded: dict[GroupId, Snapshot] = {}
        self.lost: set[MemberId] = set()  # members whose data is gone
        self._unfollowed: dict[tuple[GroupId, MemberId, int], int] = {}  # leaders, and since when
        self._found()
        self.later(_LOOK_AT_LEADERS, self._look_at_leaders)

    def _found(self) -> None:
        for group_id, broker_ids in self.placement.items():
            members = [MemberId(n, self.fresh()) for n in broker_ids]
            stored = new_replica(initial_configuration(members))
            self.founded[group_id] = stored.snapshot
            for member in members:
                file = GroupFile(member, stored.hard, stored.snapshot)
                self.brokers[member.broker_id].disk.files[group_id] = file
        for broker in self.brokers.values():
            broker.start()

    def empty_file(self, broker_id: int) -> GroupFile:
        return GroupFile(MemberId(broker_id, self.fresh()), HardState(), Snapshot(configuration=NO_MEMBERS))

    def fresh(self) -> int:
        self._fresh += 1
        return self._fresh

    # Time

    def at(self, time: int, action: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heapq.heappush(self._queue, (time, self._order, action, arguments))

    def later(self, delay: int, action: Callable[..., None], *arguments: Any) -> None:
        self.at(self.time + delay, action, *arguments)

    def step(self) -> None:
        self.time, order, action, arguments = heapq.heappop(self._queue)
        self.steps += 1
        self.trace = zlib.crc32(b"%d %d %s" % (self.time, order, action.__name__.encode()), self.trace)
        try:
            action(*arguments)
        except InvariantBroken as error:
            raise Violation("the core stopped itself", str(error)) from error

    def run_until(self, time: int) -> None:
        while self._queue and self._queue[0][0] <= time:
            self.step()
        self.time = time

    # Reading for followers

    def load_delay(self) -> int | None:
        """None: it is never answered."""
        if self.rng.random() >= self.failing_loads:
            return self.rng.randrange(200, 4000)
        return self.rng.randrange(100_000, 3_000_000) if self.rng.random() < 0.5 else None

    def load_fails(self) -> bool:
        return self.rng.random() < self.failing_loads / 2

    # Frames

    def transmit(self, source: SimBroker, send: Send) -> None:
        frame = send.frame
        if isinstance(frame, Envelope):
            file = source.disk.files.get(frame.group)
            if file is not None and file.me == frame.sender:
                self.checks.spoken(file, frame.message)
        for delay in self.network.delays(source.id, send.broker_id):
            self.later(delay, self._arrive, send.broker_id, frame)

    def _arrive(self, broker_id: int, frame: Frame) -> None:
        self.brokers[broker_id].handle(frame)

    # Looking on

    def observe(self, broker: SimBroker, node: Node, round_: RaftRound) -> None:
        self.trace = zlib.crc32(
            b"%d %d %d %d %d"
            % (broker.id, round_.number, len(round_.persists), len(round_.sends), len(round_.resolved)),
            self.trace,
        )
        changed = False
        for persist in round_.persists:
            group = node.groups.get(persist.group)
            if group is None:
                continue
            if persist.entries:
                self.checks.appended(group, persist.entries)
                if group.role is Role.LEADER and any(e.kind is Kind.CONFIGURATION for e in persist.entries):
                    changed = True
            if is_install(persist) and persist.snapshot is not None:
                self.stats["snapshots"] += 1
                self.checks.installed(group, persist.snapshot)
            self.checks.configured(group)
        for change in round_.roles:
            group = node.groups.get(change.group)
            if change.role is Role.LEADER and not change.ready and group is not None and group.term == change.term:
                self.stats["elections"] += 1
                self.checks.leader(group, self.votes(group))
                if self.on_election is not None:
                    self.on_election(broker)
        for group_id, first, last, _, _ in round_.applied:
            group = node.groups.get(group_id)
            file = broker.disk.files.get(group_id)
            if group is not None and file is not None:
                self.trace = zlib.crc32(b"%d %d" % (last, group.term), self.trace)
                self.checks.applied(group, file, first, last)
                if group.role is Role.LEADER and self.on_commit is not None:
                    self.on_commit(broker)
        for group_id, _, entries in round_.committed:
            group = node.groups.get(group_id)
            if group is not None:
                self.stats["unapplied"] += len(entries)
                for entry in entries:
                    self.checks.committed(group, entry, self.holders(group, entry.index, entry.term))
        if changed and self.on_change is not None:
            self.on_change(broker)

    def _look_at_leaders(self) -> None:
        """A leader resigns when its majority is gone, also if the brokers of that majority are up."""
        self.later(_LOOK_AT_LEADERS, self._look_at_leaders)
        for broker in self.brokers.values():
            for group in broker.node.groups.values() if broker.node is not None and not broker.paused else ():
                if group.role is Role.LEADER and not self._is_followed(group) and not self.wild_clocks:
                    since = self._unfollowed.setdefault((group.id, group.me, group.term), self.time)
                    if self.time - since > _RESIGNS_WITHIN:
                        raise Violation("check quorum", f"{group.me} leads {group.id} without its majority")
                else:
                    self._unfollowed.pop((group.id, group.me, group.term), None)

    def _is_followed(self, leader: RaftGroup) -> bool:
        following = 0
        for voter in leader.configuration.voters:
            node = self.brokers[voter.broker_id].node
            group = node.groups.get(leader.id) if node is not None else None
            following += group is not None and group.me == voter and group.term == leader.term
        return following >= leader.configuration.quorum

    def holders(self, group: RaftGroup, index: int, term: int) -> int:
        """Voters that have the entry on disk. One whose disk was lost since had it when it said so."""
        count = 0
        voters = {voter for _, configuration in group.membership.configurations for voter in configuration.voters}
        for voter in sorted(voters):
            file = self.brokers[voter.broker_id].disk.files.get(group.id)
            if voter in self.lost or (file is not None and file.me == voter and file.holds(index, term)):
                count += 1
        return count

    def votes(self, leader: RaftGroup) -> int:
        count = 0
        for voter in leader.configuration.voters:
            file = self.brokers[voter.broker_id].disk.files.get(leader.id)
            if voter in self.lost or file is None or file.me != voter:
                count += 1  # gone since it voted
            elif file.hard.term > leader.term or (file.hard.term == leader.term and file.hard.vote == leader.me):
                count += 1
        return count

    def holds_data(self, group_id: GroupId, member: MemberId) -> bool:
        file = self.brokers[member.broker_id].disk.files.get(group_id)
        return file is not None and file.me == member

    def newest_configuration(self, group_id: GroupId) -> int:
        """The index of the last configuration anyone has, in memory or on disk, committed or not."""
        newest = 0
        for broker in self.brokers.values():
            group = broker.node.groups.get(group_id) if broker.node is not None else None
            if group is not None:
                newest = max(newest, group.configuration_index)
            file = broker.disk.files.get(group_id)
            for entry in file.entries.values() if file is not None else ():
                if entry.kind is Kind.CONFIGURATION:
                    newest = max(newest, entry.index)
        return newest

    def leader_of(self, group_id: GroupId) -> tuple[SimBroker, RaftGroup] | None:
        """The ready leader with the highest term."""
        best: tuple[SimBroker, RaftGroup] | None = None
        for broker in self.brokers.values():
            group = broker.node.groups.get(group_id) if broker.node is not None and not broker.paused else None
            leads = group is not None and group.role is Role.LEADER and group.ready
            if group is not None and leads and (best is None or group.term > best[1].term):
                best = (broker, group)
        return best
