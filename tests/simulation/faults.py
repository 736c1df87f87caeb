"""What goes wrong."""

from broker.raft.configuration import GroupId
from broker.raft.events import AdvanceLogStart, TransferLeadership, WriteSnapshot
from broker.raft.node import GroupRequest
from tests.simulation.bugs import Profile
from tests.simulation.process import SimBroker
from tests.simulation.world import World


class Faults:
    def __init__(self, world: World) -> None:
        self.world = world
        self.stopped = False
        calm = world.profile is Profile.DAMAGE  # a group without a leader does nothing about its damage
        self.pace = world.rng.choice((1_000_000, 2_000_000) if calm else (300_000, 800_000, 2_000_000))
        ambush = world.profile is Profile.AMBUSH
        damage = {Profile.AMBUSH: 0, Profile.WILD_CLOCKS: 0, Profile.DAMAGE: 2}.get(world.profile, 1)
        self._kinds = [
            (2 if calm else 6, self.crash),
            (1, self.crash_all),
            (0 if ambush else 1 if calm else 3, self.pause),
            (1 if calm else 4, self.partition),
            (6 if ambush else 2, self.one_way),
            (12 if world.profile is Profile.CONGESTED else 1, self.congest),
            (0 if ambush else 2, self.slow_disk),
            (8 if world.wild_clocks else 2, self.jump_clock),
            (2, self.hand_over),
            (1 if ambush else 4, self.retain),
            (2, self.checkpoint),
            (0 if ambush else 3, self.erase),
            (damage * 3, self.damage_batch),
            (damage * 2, self.damage_journal),
            (damage * 3, self.fill_disk),
            (8 if world.profile is Profile.MEMBERSHIP else 1, self.move_replica),
        ]
        world.later(world.rng.randrange(500_000, 3_000_000), self.strike)
        self.ambush = world.rng.choice((0.5, 0.8)) if ambush else 0.0
        world.on_election = self.elected
        world.on_commit = self.committed
        world.on_change = self.changed
        self.cut_changes = 0.4 if world.profile is Profile.MEMBERSHIP else 0.0

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

    def _any_follower(self) -> SimBroker:
        """Of a small group if there is one: its leader cannot do without."""
        world = self.world
        leading = [found for group_id in sorted(world.placement) if (found := world.leader_of(group_id)) is not None]
        if not leading:
            return self._any_broker()
        broker, group = min(leading, key=lambda found: len(found[1].configuration.voters))
        others = [voter.broker_id for voter in group.configuration.voters if voter != group.me]
        return world.brokers[world.rng.choice(others)] if others else broker

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

    def changed(self, broker: SimBroker) -> None:
        """The followers of the old configuration get no word of the new one."""
        if not self.stopped and self.world.rng.random() < self.cut_changes:
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
        power = self.world.rng.random() < 0.5
        for broker in self.world.brokers.values():
            self._kill(broker, power=power)

    def _kill(self, broker: SimBroker, *, power: bool = False) -> None:
        rng = self.world.rng
        if broker.node is not None:
            self.world.stats["crashes"] += 1
            broker.crash(power=power or rng.random() < 0.3)
            fast = rng.random() < 0.4
            down = rng.randrange(20_000, 300_000 if fast else 4_000_000)
            if rng.random() < 0.3:
                self.world.later(rng.randrange(down), self._lose_power, broker)
            self.world.later(down, self._revive, broker)

    def _lose_power(self, broker: SimBroker) -> None:
        if broker.node is None:
            broker.disk.lose_power()

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

    def erase(self) -> None:
        """A broker's data is gone; only when every group can spare it."""
        broker = self._any_broker()
        world = self.world
        if not all(self._spares(group_id) for group_id in broker.disk.files):
            return
        if broker.node is not None:
            broker.crash()
            world.stats["crashes"] += 1
        broker.erase()
        world.later(world.rng.randrange(50_000, 2_000_000), self._revive, broker)

    def damage_batch(self) -> None:
        """Of any replica, also where others are damaged already: nothing is lost by it."""
        broker = self._any_broker()
        world = self.world
        group_id = self._any_group()
        file = broker.disk.files.get(group_id)
        committed = [i for i in file.entries if i <= file.hard.commit] if file is not None else []
        if committed:
            world.stats["damaged"] += 1
            broker.damage(group_id, world.rng.choice(committed))
            if world.rng.random() < 0.5:
                self._kill(broker)

    def damage_journal(self) -> None:
        """None of its replicas can be opened; at most one broker at a time, or too many groups would stand still."""
        world = self.world
        broker = self._any_follower()
        if any(file.unreadable for other in world.brokers.values() for file in other.disk.files.values()):
            return
        world.stats["damaged"] += 1
        if broker.node is not None:
            broker.crash()
            world.stats["crashes"] += 1
        broker.damage_journal()
        world.later(world.rng.randrange(20_000, 600_000), self._revive, broker)
        world.later(world.rng.randrange(4_000_000, 15_000_000), self._repair_journal, broker)

    def _repair_journal(self, broker: SimBroker) -> None:
        """Replicas that their groups could not let go."""
        for group_id, file in broker.disk.files.items():
            if file.unreadable and not broker.paused:
                broker.repair(group_id)

    def fill_disk(self) -> None:
        world = self.world
        broker = self._any_broker()
        world.stats["full"] += 1
        broker.set_space(low=True, refuses=world.rng.random() < 0.6)
        world.later(world.rng.randrange(300_000, 6_000_000), self._free_disk, broker)

    def _free_disk(self, broker: SimBroker) -> None:
        broker.set_space(low=False, refuses=False)

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
        world.failing_loads = 0.0
        for broker in world.brokers.values():
            broker.disk.delay_factor = 1
            broker.set_rate(1.0)
            if broker.paused:
                broker.resume()
            if broker.node is None:
                broker.start()
            broker.settle()
        for broker in world.brokers.values():
            broker.set_space(low=False, refuses=False)
        self._repair()

    def _repair(self) -> None:
        """A single damaged voter is left to the administrator; of several its group cannot get rid."""
        world = self.world
        for group_id in sorted(world.placement):
            damaged = [b for b in world.brokers.values() if (f := b.disk.files.get(group_id)) and f.damaged]
            leading = world.leader_of(group_id)
            is_small = leading is None or len(leading[1].configuration.voters) < 2
            if len(damaged) > 1 or (damaged and (is_small or damaged[0].disk.files[group_id].unreadable)):
                for broker in damaged:
                    broker.repair(group_id)
