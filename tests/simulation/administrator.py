"""The administrator of a cluster: puts replicas where they belong, and replaces damaged ones as the group allows."""

from broker.raft.configuration import ConfigurationChange, GroupConfiguration, GroupId, MemberId, Step
from broker.raft.events import EntryCommitted, Outcome, Reconfigure, TransferLeadership
from broker.raft.group import RaftGroup
from broker.raft.node import GroupRequest
from tests.simulation.bugs import Profile
from tests.simulation.process import SimBroker
from tests.simulation.world import World


class Administrator:
    """Makes members match the placement, one step at a time, as the write manager does.

    A damaged voter is first removed from its group, and only if all others are sound and no change is in progress;
    its data is given up when that is committed, and the broker starts again as another, empty member.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.careless = 0.5 if world.profile is Profile.MEMBERSHIP else 0.0
        world.later(500_000, self.look)

    def look(self) -> None:
        world = self.world
        world.later(world.rng.randrange(100_000, 500_000), self.look)
        for group_id in sorted(world.placement):
            leading = world.leader_of(group_id)
            if leading is None:
                continue
            if world.rng.random() < self.careless:
                self._meddle(*leading)
            else:
                self._reconcile(*leading)

    def _reconcile(self, broker: SimBroker, group: RaftGroup) -> None:
        world = self.world
        wanted = self._wanted(group.id)
        lost = [m for m in group.configuration.voters if not world.holds_data(group.id, m)]
        suspect = [m for m in group.configuration.voters if not self._is_sound(group.id, m)]
        change = next_change(group.configuration, wanted, lost, suspect, group.me)
        if change is None:
            self._clear_away(group, wanted)
        elif change.step is Step.REMOVE and change.member == group.me:
            broker.handle(GroupRequest(group.id, TransferLeadership()))
        else:
            self._ask(broker, group, change)

    def _ask(self, broker: SimBroker, group: RaftGroup, change: ConfigurationChange) -> None:
        request = self.world.fresh()
        event = Reconfigure(request, change, group.configuration_index, broker.wall())
        broker.ask(group.id, request, event, self._count)

    def _count(self, outcome: Outcome, term: int) -> None:
        if isinstance(outcome, EntryCommitted):
            self.world.stats["changes"] += 1

    def _meddle(self, broker: SimBroker, group: RaftGroup) -> None:
        """Two changes that nobody needs, at once: the core refuses what would not be safe."""
        configuration = group.configuration
        if not all(self._is_sound(group.id, m) for m in configuration.voters):
            return
        others = [m for m in configuration.voters if m != group.me]
        changes = [ConfigurationChange(Step.REMOVE, m) for m in others]
        changes += [ConfigurationChange(Step.PROMOTE, m) for m in configuration.learners]
        self.world.rng.shuffle(changes)
        for change in changes[:2]:
            self._ask(broker, group, change)

    def _is_sound(self, group_id: GroupId, member: MemberId) -> bool:
        """By the report of its broker, which must be up to make one."""
        broker = self.world.brokers[member.broker_id]
        file = broker.disk.files.get(group_id)
        is_up = broker.node is not None and not broker.paused
        return is_up and file is not None and file.me == member and not file.damaged

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
                if file.damaged:
                    self.world.stats["rebuilt"] += 1
                broker.leave(group.id)


def next_change(
    configuration: GroupConfiguration,
    wanted: list[MemberId],
    lost: list[MemberId],
    suspect: list[MemberId],
    leader: MemberId,
) -> ConfigurationChange | None:
    """Learners first, then the voter that goes, then the learner that takes its place.

    A voter without data goes before any other: while it counts, the group cannot spare a sound one. Any other voter
    goes only if those that remain are known to be sound.
    """
    for member in wanted:
        if member not in configuration.members:
            return ConfigurationChange(Step.ADD_LEARNER, member)
    for member in configuration.learners:
        if member not in wanted:
            return ConfigurationChange(Step.REMOVE, member)
    surplus = [m for m in configuration.voters if m not in wanted and (m in lost or not any(s != m for s in suspect))]
    surplus.sort(key=lambda m: (m not in lost, m == leader))
    if surplus and len(configuration.voters) >= 3:
        return ConfigurationChange(Step.REMOVE, surplus[0])
    for member in configuration.learners:
        return ConfigurationChange(Step.PROMOTE, member)
    return ConfigurationChange(Step.REMOVE, surplus[0]) if surplus else None
