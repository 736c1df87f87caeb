"""A replica's place in its group, as it is reported to the write manager."""

from typing import NamedTuple

from broker.raft.configuration import Configuration
from broker.raft.effects import Role
from broker.raft.group import Group


class Standing(NamedTuple):
    role: Role
    ready: bool
    term: int
    voter: bool
    configuration_index: int  # of what is committed
    configuration: Configuration


def standing_of(group: Group) -> Standing:
    committed = (pair for pair in reversed(group.configurations) if pair[0] <= group.applied)
    index, configuration = next(committed, group.configurations[0])
    return Standing(group.role, group.ready, group.term, group.me in group.configuration.voters, index, configuration)
