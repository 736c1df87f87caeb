"""Who votes and who only listens, and the single steps by which that changes.

A step adds or removes at most one voter, so every majority before it meets every majority after it and no joint phase
is needed. Replacing a member is several steps: learner in, old voter out, learner promoted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from broker.raft.identity import Member


@dataclass(frozen=True, slots=True)
class Configuration:
    """Sorted tuples, not sets: every replica walks them in the same order."""

    voters: tuple[Member, ...] = ()
    learners: tuple[Member, ...] = ()

    @property
    def members(self) -> tuple[Member, ...]:
        return self.voters + self.learners

    @property
    def quorum(self) -> int:
        return len(self.voters) // 2 + 1


NOBODY = Configuration()


class Step(Enum):
    ADD_LEARNER = "add_learner"
    PROMOTE = "promote"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Change:
    step: Step
    member: Member


def bootstrap(voters: Iterable[Member]) -> Configuration:
    return Configuration(tuple(sorted(voters)))


def changed(current: Configuration, change: Change) -> Configuration | str:
    """The next configuration, or why there is none."""
    member = change.member
    if change.step is Step.ADD_LEARNER:
        if member in current.members:
            return "already a member"
        return Configuration(current.voters, tuple(sorted((*current.learners, member))))
    without = tuple(m for m in current.learners if m != member)
    if change.step is Step.PROMOTE:
        if member not in current.learners:
            return "not a learner"
        return Configuration(tuple(sorted((*current.voters, member))), without)
    if member in current.learners:
        return Configuration(current.voters, without)
    if member not in current.voters:
        return "not a member"
    if len(current.voters) == 1:
        return "the last voter stays"
    return Configuration(tuple(m for m in current.voters if m != member), current.learners)


def majority_index(indexes: list[int], quorum: int) -> int:
    """The highest index that at least `quorum` of the voters have reached."""
    if len(indexes) < quorum:
        return 0
    indexes.sort(reverse=True)
    return indexes[quorum - 1]
