"""Which single step brings a partition's members closer to what the catalog wants. Values in, decision out."""

from collections.abc import Mapping, Sequence

from myqueue.protocol.internal import Configuration, MemberChange, MemberName


def next_change(wanted: Sequence[int], configuration: Configuration, present: Mapping[int, str]) -> MemberChange | None:
    """`present` is the incarnation under which each broker holds the partition now.

    A broker that lost its data is present under another incarnation than its member: the new one is taken in as a
    learner, the old one, which never comes back, is removed, and the learner is promoted when it has caught up. In this
    order no step asks for more voters to be alive than the one before it. A sound voter is removed last.
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
