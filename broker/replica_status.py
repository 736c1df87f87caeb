"""The status of a replica in its group, as it is reported to the write manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.raft.configuration import GroupConfiguration, MemberId
from broker.raft.effects import Role
from broker.raft.group import RaftGroup
from myqueue.protocol.internal import Configuration, MemberName, PartitionReport

if TYPE_CHECKING:
    from broker.replica import Replica


class ReplicaStatus(NamedTuple):
    role: Role
    ready: bool
    term: int
    voter: bool
    configuration_index: int  # of the committed one
    configuration: GroupConfiguration
    newest_index: int  # of the newest one in the log, committed or not
    newest: GroupConfiguration


def status_of(group: RaftGroup) -> ReplicaStatus:
    configurations = group.membership.configurations
    committed = (pair for pair in reversed(configurations) if pair[0] <= group.applied)
    index, configuration = next(committed, configurations[0])
    is_voter = group.membership.is_voter(group.me)
    return ReplicaStatus(group.role, group.ready, group.term, is_voter, index, configuration, *configurations[-1])


def report_of(replica: Replica, status: ReplicaStatus | None) -> PartitionReport:
    bounds, settings = replica.bounds(), replica.log.group.settings
    leads = status is not None and status.role is Role.LEADER and status.ready
    return {
        "topic_id": str(replica.topic_id),
        "partition_id": replica.partition_id,
        "incarnation": f"{replica.me.incarnation:016x}",
        "role": "leader" if leads else "follower" if status is not None and status.voter else "learner",
        "term": replica.log.group.hard.term if status is None else status.term,
        "configuration": _configuration(status) if leads and status is not None else None,
        "beginning_offset": bounds.start_offset,
        "end_offset": bounds.end_offset,
        "size_bytes": bounds.size_bytes,
        "damaged": replica.damage,
        "configuration_index": 0 if status is None else status.newest_index,
        "retention_ms": settings.retention_ms,
        "retention_bytes": settings.retention_bytes,
    }


def _configuration(status: ReplicaStatus) -> Configuration:
    members = status.configuration
    return {
        "index": status.configuration_index,
        "voters": [_member(member) for member in members.voters],
        "learners": [_member(member) for member in members.learners],
    }


def _member(member: MemberId) -> MemberName:
    return {"broker_id": member.broker_id, "incarnation": f"{member.incarnation:016x}"}
