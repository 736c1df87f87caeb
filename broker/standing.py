"""A replica's place in its group, as it is reported to the write manager."""

from typing import NamedTuple

from broker.raft.configuration import GroupConfiguration
from broker.raft.effects import Role
from broker.raft.group import RaftGroup


class Standing(NamedTuple):
    role: Role
    ready: bool
    term: int
    voter: bool
    configuration_index: int  # of what is committed
    configuration: GroupConfiguration


def standing_of(group: RaftGroup) -> Standing:
    configurations = group.membership.configurations
    committed = (pair for pair in reversed(configurations) if pair[0] <= group.applied)
    index, configuration = next(committed, configurations[0])
    return Standing(group.role, group.ready, group.term, group.me in group.configuration.voters, index, configuration)
