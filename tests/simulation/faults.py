"""What goes wrong, and the reconciler that puts replicas back where they belong."""

from broker.raft.configuration import ConfigurationChange, GroupConfiguration, GroupId, MemberId, Step
from broker.raft.events import AdvanceLogStart, EntryCommitted, Outcome, Reconfigure, TransferLeadership, WriteSnapshot
from broker.raft.group import RaftGroup
from broker.raft.node import GroupRequest
from tests.simulation.bugs import Profile
from tests.simulation.process import SimBroker
from tests.simulation.world import World


class Faults:
    def __init__(self, world: World) -> None:
        self.world = world
        self.stopped = False
        self.pace = world.rng.choice((300_000, 800_000, 2_000_000))
        ambush = world.profile is Profile.AMBUSH
        self._kinds = [
            (6, self.crash),
            (1, self.crash_all),
            (0 if ambush else 3, self.pause),
            (4, self.partition),
            (6 if ambush else 2, self.one_way),
            (12 if world.profile is Profile.CONGESTED else 1, self.congest),
            (0 if ambush else 2, self.slow_disk),
            (8 if world.wild_clocks else 2, self.jump_clock),
            (2, self.hand_over),
            (1 if ambush else 4, self.retain),
            (2, self.checkpoint),
            (0 if ambush else 3, self.lose_data),
            (1, self.move_replica),
        ]
        world.later(world.rng.randrange(500_000, 3_000_000), self.strike)
        self.ambush = world.rng.choice((0.5, 0.8)) if ambush else 0.0
        world.on_election = self.elected
        world.on_commit = self.committed

    def strike(self) -> None:
        if self.stopped:
            return
        world = self.world
        weights = [weight for weight, _ in self._kinds]
        _, fault = world.rng.choices(self._kinds, weights)[0]
        fault()
        world.later(world.rng.randrange(self.pace // 4, self.pace * 2), self.strike)

    def _any_broker(self) -> SimBroker:
        """Leaders are hit more often than others: that is where the interesting failures are."""
        rng = self.world.rng
        if rng.random() < 0.6:
            leading = self.world.leader_of(self._any_group())
            if leading is not None:
                return leading[0]
        return self.world.brokers[rng.choice(sorted(self.world.brokers))]

    def _any_group(self) -> GroupId:
        return self.world.rng.choice(sorted(self.world.placement))

    def elected(self, broker: SimBroker) -> None:
        """Either not even the first entry leaves the new leader, or it is stopped while it hands on older ones."""
        rng = self.world.rng
        if self.stopped or rng.random() >= self.ambush:
            return
        if rng.random() < 0.5:
            self._isolate(broker)
        else:
            self.world.later(rng.randrange(2_000, 40_000), self._isolate, broker)

    def committed(self, broker: SimBroker) -> None:
        """No follower learns of a commit from the leader that made it."""
        if not self.stopped and self.world.rng.random() < self.ambush / 4:
            self._isolate(broker)

    def _isolate(self, broker: SimBroker) -> None:
        if self.stopped:
            return
        rng = self.world.rng
        outwards = {(broker.id, n) for n in self.world.brokers}
        self._block(outwards if rng.random() < 0.5 else outwards | {(b, a) for a, b in outwards})
        if rng.random() < 0.7:
            self.world.later(rng.randrange(5_000, 20_000), self._kill, broker)

    # Processes

    def crash(self) -> None:
        self._kill(self._any_broker())

    def crash_all(self) -> None:
        for broker in self.world.brokers.values():
            self._kill(broker)

    def _kill(self, broker: SimBroker) -> None:
        if broker.node is not None:
            self.world.stats["crashes"] += 1
            broker.crash()
            fast = self.world.rng.random() < 0.4
            self.world.later(self.world.rng.randrange(20_000, 300_000 if fast else 4_000_000), self._revive, broker)

    def _revive(self, broker: SimBroker) -> None:
        if broker.node is None:
            broker.start()

    def pause(self) -> None:
        broker = self._any_broker()
        if broker.node is not None and not broker.paused:
            broker.pause()
            self.world.later(self.world.rng.randrange(200_000, 5_000_000), self._resume, broker)

    def _resume(self, broker: SimBroker) -> None:
        if broker.paused:
            broker.resume()

    # Links

    def partition(self) -> None:
        alone = self._any_broker().id
        others = [n for n in self.world.brokers if n != alone]
        self._block({(alone, n) for n in others} | {(n, alone) for n in others})

    def one_way(self) -> None:
        one = self._any_broker().id
        others = [n for n in self.world.brokers if n != one]
        some = self.world.rng.sample(others, self.world.rng.randint(1, len(others)))
        inwards = self.world.rng.random() < 0.5
        self._block({(n, one) if inwards else (one, n) for n in some})

    def _block(self, links: set[tuple[int, int]]) -> None:
        self.world.network.blocked |= links
        self.world.later(self.world.rng.randrange(300_000, 5_000_000), self._unblock, links)

    def _unblock(self, links: set[tuple[int, int]]) -> None:
        self.world.network.blocked -= links

    def congest(self) -> None:
        """Frames of some links take their time and overtake each other."""
        brokers = sorted(self.world.brokers)
        links = {(a, b) for a in brokers for b in brokers if a != b and self.world.rng.random() < 0.4}
        self.world.network.congested |= links
        self.world.later(self.world.rng.randrange(1_000_000, 8_000_000), self._clear, links)

    def _clear(self, links: set[tuple[int, int]]) -> None:
        self.world.network.congested -= links

    # Disks and clocks

    def slow_disk(self) -> None:
        disk = self._any_broker().disk
        disk.delay_factor = self.world.rng.choice((10, 100, 400))
        self.world.later(self.world.rng.randrange(500_000, 3_000_000), self._fast_disk, disk)

    def _fast_disk(self, disk: object) -> None:
        for broker in self.world.brokers.values():
            if broker.disk is disk:
                broker.disk.delay_factor = 1

    def jump_clock(self) -> None:
        broker = self._any_broker()
        broker.wall_offset += self.world.rng.choice((-3_600_000, 3_600_000))
        if self.world.wild_clocks:
            broker.set_rate(self.world.rng.choice((0.1, 0.3, 1.0, 2.0)))
            broker.settle()

    def lose_data(self) -> None:
        """Erase a broker, or damage one replica's file; only when every group can spare it."""
        broker = self._any_broker()
        world = self.world
        if not all(self._spares(group_id) for group_id in broker.disk.files):
            return
        if broker.node is not None:
            broker.crash()
            world.stats["crashes"] += 1
        if world.rng.random() < 0.5 or not broker.disk.files or world.bug.keeps_identity:
            broker.erase()
        else:
            group_id = world.rng.choice(sorted(broker.disk.files))
            world.lost.add(broker.disk.files[group_id].me)
            broker.disk.files[group_id].damaged = True
        world.later(world.rng.randrange(50_000, 2_000_000), self._revive, broker)

    def _spares(self, group_id: GroupId) -> bool:
        """At least three voters, all with their data, and no change of members under way anywhere."""
        leading = self.world.leader_of(group_id)
        if leading is None:
            return False
        group = leading[1]
        configuration = group.configuration
        return (
            len(configuration.voters) >= 3
            and group.configuration_index <= group.applied
            and self.world.newest_configuration(group_id) == group.configuration_index
            and all(self.world.holds_data(group_id, voter) for voter in configuration.voters)
        )

    # Things operators do

    def hand_over(self) -> None:
        leading = self.world.leader_of(self._any_group())
        if leading is not None:
            leading[0].handle(GroupRequest(leading[1].id, TransferLeadership()))

    def retain(self) -> None:
        leading = self.world.leader_of(self._any_group())
        if leading is None:
            return
        broker, group = leading
        file = broker.disk.files[group.id]
        indexes = [i for i in file.entries if group.log.start_index < i <= group.applied]
        if indexes:
            at = self.world.rng.choice(indexes)
            request = AdvanceLogStart(self.world.fresh(), at, file.entries[at].base_offset, broker.wall())
            broker.handle(GroupRequest(group.id, request))
            self.world.stats["cuts"] += 1

    def checkpoint(self) -> None:
        group_id = self._any_group()
        self._any_broker().handle(GroupRequest(group_id, WriteSnapshot()))

    def move_replica(self) -> None:
        group_id = self._any_group()
        placed = self.world.placement[group_id]
        free = [n for n in sorted(self.world.brokers) if n not in placed]
        if free:
            leaving = self.world.rng.choice(placed)
            self.world.placement[group_id] = sorted([n for n in placed if n != leaving] + [self.world.rng.choice(free)])

    def heal(self) -> None:
        self.stopped = True
        world = self.world
        world.network.heal()
        for broker in world.brokers.values():
            broker.disk.delay_factor = 1
            broker.set_rate(1.0)
            if broker.paused:
                broker.resume()
            if broker.node is None:
                broker.start()
            broker.settle()


class Reconciler:
    """Makes members match the placement, one step at a time, as the write manager will."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.later(500_000, self.look)

    def look(self) -> None:
        self.world.later(self.world.rng.randrange(100_000, 500_000), self.look)
        for group_id in sorted(self.world.placement):
            leading = self.world.leader_of(group_id)
            if leading is not None:
                self._reconcile(*leading)

    def _reconcile(self, broker: SimBroker, group: RaftGroup) -> None:
        wanted = self._wanted(group.id)
        lost = [m for m in group.configuration.voters if not self.world.holds_data(group.id, m)]
        change = next_change(group.configuration, wanted, lost, group.me)
        if change is None:
            self._clear_away(group, wanted)
        elif change.step is Step.REMOVE and change.member == group.me:
            broker.handle(GroupRequest(group.id, TransferLeadership()))
        else:
            request = self.world.fresh()
            event = Reconfigure(request, change, group.configuration_index, broker.wall())
            broker.ask(group.id, request, event, self._count)

    def _count(self, outcome: Outcome, term: int) -> None:
        if isinstance(outcome, EntryCommitted):
            self.world.stats["changes"] += 1

    def _wanted(self, group_id: GroupId) -> list[MemberId]:
        wanted = []
        for broker_id in self.world.placement[group_id]:
            broker = self.world.brokers[broker_id]
            if group_id not in broker.disk.files and broker.node is not None and not broker.paused:
                broker.join(group_id)
            file = broker.disk.files.get(group_id)
            if file is not None and not file.damaged:
                wanted.append(file.me)
        return wanted

    def _clear_away(self, group: RaftGroup, wanted: list[MemberId]) -> None:
        """Replicas that belong nowhere go, once a committed configuration is without them."""
        if group.configuration_index > group.applied:
            return
        for broker in self.world.brokers.values():
            file = broker.disk.files.get(group.id)
            if file is None or broker.node is None or broker.paused:
                continue
            if file.me not in group.configuration.members and file.me not in wanted:
                broker.leave(group.id)


def next_change(
    configuration: GroupConfiguration, wanted: list[MemberId], lost: list[MemberId], leader: MemberId
) -> ConfigurationChange | None:
    """Learners first, then the voter that goes, then the learner that takes its place.

    A voter without data goes before any other: while it counts, the group cannot spare a sound one.
    """
    for member in wanted:
        if member not in configuration.members:
            return ConfigurationChange(Step.ADD_LEARNER, member)
    for member in configuration.learners:
        if member not in wanted:
            return ConfigurationChange(Step.REMOVE, member)
    surplus = [m for m in configuration.voters if m not in wanted and (m in lost or not lost)]
    if surplus and len(configuration.voters) >= 3:
        return ConfigurationChange(Step.REMOVE, next((m for m in surplus if m != leader), leader))
    for member in configuration.learners:
        return ConfigurationChange(Step.PROMOTE, member)
    return ConfigurationChange(Step.REMOVE, surplus[0]) if surplus else None
