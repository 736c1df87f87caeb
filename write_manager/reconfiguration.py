"""Raft reconfiguration: which single step brings a partition's members closer to the catalog's. No IO."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from db.catalog import Voter
from myqueue.protocol.internal import Configuration, MemberChange, MemberName, PartitionReport


@dataclass(frozen=True, slots=True)
class ReportedReplica:
    """A replica as its broker reported it."""

    incarnation: str
    vacant: bool  # it never joined a group: it has no vote, no message and no configuration

    @classmethod
    def of(cls, report: PartitionReport) -> "ReportedReplica":
        started = report["term"] or report["end_offset"] or report["size_bytes"]
        return cls(report["incarnation"], report["role"] == "learner" and not started)


def new_initial_voters(
    wanted: Sequence[int],
    voters: Sequence[Voter],
    incarnations: Mapping[int, str],
    reported: Mapping[int, ReportedReplica],
) -> tuple[Voter, ...] | None:
    """The voter that a partition restarts with, empty, when none of its replicas has any data; else None.

    One alone: the others wait without a configuration and never campaign, so no conflicting vote can exist.
    The leader that it becomes adds them as learners, as it does with every replica that lost its data.

    `incarnations` are those of the live brokers' data, `reported` the partition's replicas on them. A broker that is
    away may hold the last copy: wait for it. Wait also for one that returns as one of the initial voters. A majority
    that lost its data is no reason while one replica still has some: whether that is enough is an operator's decision.
    """
    involved = {*wanted, *(broker_id for broker_id, _ in voters)}
    if not involved <= incarnations.keys() or not all(replica.vacant for replica in reported.values()):
        return None
    present = {b: reported[b].incarnation if b in reported else incarnations[b] for b in involved}
    if any(present[broker_id] == incarnation for broker_id, incarnation in voters):
        return None
    return ((wanted[0], present[wanted[0]]),)


def is_another_group(known: Configuration | None, reported: Configuration | None) -> bool:
    """True when no member is common to both. Members of one group change one at a time, so some of them stay."""
    if known is None or reported is None:
        return False
    return not _members(known) & _members(reported)


def _members(configuration: Configuration) -> set[tuple[int, str]]:
    return {_name(member) for member in configuration["voters"] + configuration["learners"]}


def next_change(wanted: Sequence[int], configuration: Configuration, present: Mapping[int, str]) -> MemberChange | None:
    """`present` is the incarnation under which each broker holds the partition now.

    A broker that lost its data is present under another incarnation than its member: the new one is added as a
    learner, the old one, which never comes back, is removed, and the learner is promoted when it has caught up. In this
    order no step needs more live voters than the one before it. A sound voter is removed last.
    """
    voters = [_name(member) for member in configuration["voters"]]
    learners = [_name(member) for member in configuration["learners"]]
    for broker_id in wanted:
        if broker_id in present and (broker_id, present[broker_id]) not in voters + learners:
            return _change("add_learner", (broker_id, present[broker_id]), configuration)
    lost = [member for member in learners + voters if present.get(member[0], member[1]) != member[1]]
    promotable = [member for member in learners if member[0] in wanted and present.get(member[0]) == member[1]]
    surplus = [member for member in learners + voters if member[0] not in wanted]
    for member in lost:
        if voters != [member]:
            return _change("remove", member, configuration)
    for member in promotable:
        return _change("promote", member, configuration)
    for member in lost + surplus:
        if voters != [member]:
            return _change("remove", member, configuration)
    return None


def _name(member: MemberName) -> tuple[int, str]:
    return member["broker_id"], member["incarnation"]


def _change(step: str, member: tuple[int, str], configuration: Configuration) -> MemberChange:
    name: MemberName = {"broker_id": member[0], "incarnation": member[1]}
    return {"step": step, "member": name, "expected": configuration["index"]}  # type: ignore[typeddict-item]
