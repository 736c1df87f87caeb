"""Raft reconfiguration: which single step brings a partition's members closer to the catalog's. No IO."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from db.catalog import Voter
from myqueue.protocol.internal import Configuration, MemberChange, MemberName, PartitionReport

Retention = tuple[int | None, int | None]  # ms and bytes


@dataclass(frozen=True, slots=True)
class ReportedReplica:
    """A replica as its broker reported it."""

    incarnation: str
    vacant: bool  # it never joined a group: it has no vote, no message and no configuration
    damaged: str | None = None  # why it must be rebuilt; a damaged replica has data
    configuration_index: int = 0  # of the newest configuration in its log
    retention: Retention | None = None  # that it has stored; None: its broker does not report it

    @classmethod
    def of(cls, report: PartitionReport) -> "ReportedReplica":
        damaged = report.get("damaged")
        started = report["term"] or report["end_offset"] or report["size_bytes"] or damaged is not None
        return cls(
            report["incarnation"],
            report["role"] == "learner" and not started,
            damaged,
            report.get("configuration_index", 0),
            (report["retention_ms"], report.get("retention_bytes")) if "retention_ms" in report else None,
        )

    def has_other_retention(self, wanted: Retention) -> bool:
        return self.retention is not None and self.retention != wanted


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


def next_change(
    wanted: Sequence[int], configuration: Configuration, present: Mapping[int, ReportedReplica]
) -> MemberChange | None:
    """`present` are the replicas on live brokers, as reported.

    A broker that lost its data is present under another incarnation than its member: the new one is added as a
    learner, the old one, which never comes back, is removed, and the learner is promoted when it has caught up. In this
    order no step needs more live voters than the one before it. A sound voter is removed last.

    A damaged member is removed before it is rebuilt, because its group may need what is sound of it until then. A
    damaged voter is removed only while the group is complete without it (every other wanted replica votes, no learner
    catches up) and the sound voters are a majority of those that remain: with up to three voters, all of them. So a
    second damaged one waits until the first is a voter again. Where most voters are damaged, or the only one, nothing
    changes: what to do then is an operator's decision.
    """
    voters = [_name(member) for member in configuration["voters"]]
    learners = [_name(member) for member in configuration["learners"]]
    sound = {(b, replica.incarnation) for b, replica in present.items() if replica.damaged is None}
    damaged = {(b, replica.incarnation) for b, replica in present.items() if replica.damaged is not None}
    damaged_voters = [member for member in voters if member in damaged]
    if damaged_voters and (2 * len(damaged_voters) > len(voters) or not sound.intersection(voters)):
        return None
    for member in learners:
        if member in damaged:
            return _change("remove", member, configuration)
    for broker_id, incarnation in ((b, present[b].incarnation) for b in wanted if b in present):
        if (broker_id, incarnation) in sound.difference(voters, learners):
            return _change("add_learner", (broker_id, incarnation), configuration)
    for member in damaged_voters:
        remaining = [other for other in voters if other != member]
        complete = not learners and {*wanted} <= {member[0], *(b for b, _ in remaining)}
        if complete and 2 * len(sound.intersection(remaining)) > len(remaining):
            return _change("remove", member, configuration)
    lost = [member for member in learners + voters if _is_lost(member, present)]
    promotable = [member for member in learners if member[0] in wanted and member in sound]
    for member in lost:
        leaves_most_damaged = member in voters and 2 * len(damaged_voters) >= len(voters)
        if voters != [member] and not leaves_most_damaged:
            return _change("remove", member, configuration)
    for member in promotable:
        return _change("promote", member, configuration)
    removable = learners if damaged_voters else learners + voters  # sound voters are needed to rebuild the damaged
    for member in removable:
        if member[0] not in wanted and voters != [member]:
            return _change("remove", member, configuration)
    return None


def _is_lost(member: tuple[int, str], present: Mapping[int, ReportedReplica]) -> bool:
    replica = present.get(member[0])
    return replica is not None and replica.incarnation != member[1]


def is_rebuildable(
    broker_id: int, replica: ReportedReplica, wanted: Sequence[int], configuration: Configuration | None
) -> bool:
    """The damaged replica is no member of its group any more: nobody counts on its votes and its data.

    `configuration` is the committed one that the leader reported.
    """
    if replica.damaged is None or broker_id not in wanted or configuration is None:
        return False
    return (broker_id, replica.incarnation) not in _members(configuration)


def _name(member: MemberName) -> tuple[int, str]:
    return member["broker_id"], member["incarnation"]


def _change(step: str, member: tuple[int, str], configuration: Configuration) -> MemberChange:
    name: MemberName = {"broker_id": member[0], "incarnation": member[1]}
    return {"step": step, "member": name, "expected": configuration["index"]}  # type: ignore[typeddict-item]
