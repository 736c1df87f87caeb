"""Groups, members and configurations, and the single steps by which a configuration changes.

A group is one partition of one topic. A topic that is deleted and created again has another UUID, so it is another
group and old frames cannot reach it. A member is one replica of one broker. A broker whose data was erased, restored
or found corrupt has another incarnation, so it is another member: votes and acknowledgements of the lost replica are
never taken for promises of the new one.

A step adds or removes at most one voter, so every majority before it meets every majority after it and joint consensus
is not needed. Replacing a member takes several steps: add a learner, remove the old voter, promote the learner.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
from uuid import UUID


class GroupId(NamedTuple):
    topic: UUID
    partition: int


class MemberId(NamedTuple):
    broker_id: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class GroupConfiguration:
    """Sorted tuples, not sets: every replica walks them in the same order."""

    voters: tuple[MemberId, ...] = ()
    learners: tuple[MemberId, ...] = ()

    @property
    def members(self) -> tuple[MemberId, ...]:
        return self.voters + self.learners

    @property
    def quorum(self) -> int:
        return len(self.voters) // 2 + 1


NO_MEMBERS = GroupConfiguration()


class Step(Enum):
    ADD_LEARNER = "add_learner"
    PROMOTE = "promote"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class ConfigurationChange:
    step: Step
    member: MemberId


def initial_configuration(voters: Iterable[MemberId]) -> GroupConfiguration:
    return GroupConfiguration(tuple(sorted(voters)))


def changed(current: GroupConfiguration, change: ConfigurationChange) -> GroupConfiguration | str:
    """The next configuration, or the reason why the step is refused."""
    member = change.member
    if change.step is Step.ADD_LEARNER:
        if member in current.members:
            return "already a member"
        return GroupConfiguration(current.voters, tuple(sorted((*current.learners, member))))
    without = tuple(m for m in current.learners if m != member)
    if change.step is Step.PROMOTE:
        if member not in current.learners:
            return "not a learner"
        return GroupConfiguration(tuple(sorted((*current.voters, member))), without)
    if member in current.learners:
        return GroupConfiguration(current.voters, without)
    if member not in current.voters:
        return "not a member"
    if len(current.voters) == 1:
        return "the last voter stays"
    return GroupConfiguration(tuple(m for m in current.voters if m != member), current.learners)


def majority_index(indexes: list[int], quorum: int) -> int:
    """The highest index that at least `quorum` of the voters have reached."""
    if len(indexes) < quorum:
        return 0
    indexes.sort(reverse=True)
    return indexes[quorum - 1]
