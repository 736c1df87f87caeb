"""Single decisions of a group that a reader of the design would look for."""

import pytest

from broker.raft.configuration import NO_MEMBERS, ConfigurationChange, GroupId, MemberId, Step
from broker.raft.context import InvariantBroken, RaftSettings
from broker.raft.dedupe import Problem, Repeat
from broker.raft.effects import Role
from broker.raft.entry import Stamp
from broker.raft.events import (
    AdvanceLogStart,
    Campaign,
    DedupeOutcome,
    EntryCommitted,
    LeadershipLost,
    NotGroupLeader,
    NotReady,
    Propose,
    Read,
    ReadAt,
    Reconfigure,
    RequestRefused,
    TransferLeadership,
)
from broker.raft.messages import (
    Append,
    AppendReply,
    Envelope,
    Heartbeat,
    InstallSnapshot,
    PreVote,
    PreVoteReply,
    Row,
    RowKey,
    Vote,
    VoteReply,
)
from broker.raft.node import Durable, GroupRequest
from broker.raft.snapshot import HardState, Snapshot, Stored, new_replica
from tests.unit.raft.trio import GROUP, Trio


def message(request: int, wall_ms: int = 0, count: int = 1) -> Propose:
    return Propose(request, b"m%d" % request, count, wall_ms)


def led() -> tuple[Trio, int]:
    trio = Trio()
    trio.pass_time(3000)
    return trio, trio.leader()


def test_offsets_are_gapless_and_time_does_not_go_back() -> None:
    trio, leader = led()
    first = trio.ask(leader, message(1, wall_ms=500, count=3))
    second = trio.ask(leader, message(2, wall_ms=400))
    assert first == [EntryCommitted(2, 0, 500)]
    assert second == [EntryCommitted(3, 3, 500)]
    assert trio.ask(leader, Read(3)) == [ReadAt(3, 0, 4)]


def test_a_follower_takes_nothing_and_names_the_leader() -> None:
    trio, leader = led()
    follower = next(n for n in trio.nodes if n != leader)
    assert trio.ask(follower, message(1)) == [NotGroupLeader(trio.group(leader).me)]


def test_a_vote_is_durable_before_it_is_spoken_of() -> None:
    trio = Trio()
    node, voter = trio.nodes[1], trio.group(1)
    candidate = trio.members[1]
    node.step(None, 1500)
    node.drain()
    node.step(Envelope(GROUP, candidate, voter.me, Vote(5, 0, 0, transfer=True)), 1500)
    round_ = node.drain()
    [persist] = round_.persists
    assert (persist.hard.term, persist.hard.vote) == (5, candidate)
    replies = [s for s in round_.sends if isinstance(s.frame, Envelope) and isinstance(s.frame.message, VoteReply)]
    assert [reply.after for reply in replies] == [round_.number]


def test_a_leader_sends_before_its_own_disk_is_done_but_does_not_count_itself() -> None:
    trio, leader = led()
    node, group = trio.nodes[leader], trio.group(leader)
    node.step(GroupRequest(GROUP, message(1)), trio.now)
    round_ = node.drain()
    appends = [s for s in round_.sends if isinstance(s.frame, Envelope) and isinstance(s.frame.message, Append)]
    assert len(appends) == 2
    assert all(send.after == 0 for send in appends)
    other = next(m for m in trio.members if m != group.me)
    node.step(Envelope(GROUP, other, group.me, AppendReply(group.term, 1, 2)), trio.now)
    assert group.state.commit_index == 1
    node.step(Durable(round_.number), trio.now)
    assert group.state.commit_index == 2
    assert [r.outcome for r in node.drain().resolved] == [EntryCommitted(2, 0, 0)]


def test_nothing_is_taken_before_the_first_entry_of_the_term_is_applied() -> None:
    trio = Trio()
    node, group, other = trio.nodes[1], trio.group(1), trio.members[1]
    node.step(None, 3000)
    node.drain()
    node.step(Envelope(GROUP, other, group.me, PreVoteReply(1, granted=True)), 3000)
    voted = node.drain()
    node.step(Durable(voted.number), 3000)
    node.step(Envelope(GROUP, other, group.me, VoteReply(1, granted=True)), 3000)
    assert group.role is Role.LEADER
    for event in (message(1), Read(2)):
        node.step(GroupRequest(GROUP, event), 3000)
    first = node.drain()
    assert [r.outcome for r in first.resolved] == [NotReady(), NotReady()]
    node.step(Durable(first.number), 3000)
    node.step(Envelope(GROUP, other, group.me, AppendReply(1, 0, 1)), 3000)
    node.step(GroupRequest(GROUP, message(3)), 3000)
    assert node.drain().resolved == []
    assert group.replication.waiting == {2: 3}


def test_a_leader_without_its_majority_resigns_and_its_request_is_unknown() -> None:
    trio, leader = led()
    trio.cut_off = {leader}
    assert trio.ask(leader, message(1)) == []
    assert trio.ask(leader, Read(2)) == []
    trio.pass_time(1500)
    assert trio.group(leader).role is not Role.LEADER
    assert sorted(type(r.outcome).__name__ for r in trio.resolved) == ["LeadershipLost", "NotGroupLeader"]
    assert LeadershipLost() in [r.outcome for r in trio.resolved]
    trio.pass_time(2500)
    other = next(n for n in trio.nodes if n != leader and trio.group(n).role is Role.LEADER)
    assert trio.ask(other, message(3)) == [EntryCommitted(3, 0, 0)]
    trio.cut_off = set()
    trio.pass_time(2000)
    assert {trio.group(n).applied for n in trio.nodes} == {3}


def test_repeats_and_mistakes_are_told_only_with_a_majority_behind_it() -> None:
    trio, leader = led()
    stamped = Propose(1, b"a", 1, 0, Stamp(9, 0, 0, crc=1))
    assert trio.ask(leader, stamped) == [EntryCommitted(2, 0, 0)]
    assert trio.ask(leader, stamped) == [DedupeOutcome(Repeat(0), ())]
    assert trio.ask(leader, Propose(2, b"b", 1, 0, Stamp(9, 0, 0, crc=2))) == [DedupeOutcome(Problem.CONFLICT, ())]
    trio.cut_off = {leader}
    assert trio.ask(leader, stamped) == []


def test_handing_over_costs_no_election_timeout() -> None:
    trio, leader = led()
    target = next(m for m in trio.members if m.broker_id != leader)
    trio.ask(leader, TransferLeadership(target))
    assert trio.group(target.broker_id).role is Role.LEADER
    assert trio.group(target.broker_id).ready
    assert trio.group(leader).role is Role.FOLLOWER


def test_a_new_group_gets_its_leader_at_once() -> None:
    trio = Trio()
    trio.now = 1000  # its brokers have been up for a while
    trio.ask(2, Campaign())
    assert trio.leader() == 2
    assert trio.group(2).ready


def test_an_idle_group_is_in_no_frame() -> None:
    trio, _ = led()
    trio.pass_time(1000)
    trio.rounds.clear()
    trio.pass_time(5000)
    frames = [send.frame for _, round_ in trio.rounds for send in round_.sends]
    assert len(frames) > 50
    assert not [f for f in frames if isinstance(f, Envelope) or (isinstance(f, Heartbeat) and f.rows)]
    assert not [round_ for _, round_ in trio.rounds if round_.persists]


def test_a_frame_to_another_incarnation_is_dropped() -> None:
    trio = Trio()
    node = trio.nodes[1]
    node.step(Envelope(GROUP, trio.members[1], MemberId(1, 999), Vote(9, 50, 8, transfer=True)), 2000)
    assert trio.group(1).term == 0


def replace_broker_3(trio: Trio, leader: int) -> MemberId:
    fresh = MemberId(3, 99)
    trio.add(fresh, new_replica(NO_MEMBERS))
    expected = trio.group(leader).configuration_index
    assert trio.ask(leader, Reconfigure(70, ConfigurationChange(Step.ADD_LEARNER, fresh), expected, 0))
    return fresh


def leader_without(trio: Trio, broker_id: int) -> int:
    leader = trio.leader()
    if leader == broker_id:
        trio.ask(leader, TransferLeadership())
    return trio.leader()


def test_an_erased_broker_comes_back_as_a_learner_and_becomes_a_voter() -> None:
    trio, _ = led()
    leader = leader_without(trio, 3)
    for request in range(1, 6):
        trio.ask(leader, message(request))
    fresh = replace_broker_3(trio, leader)
    group = trio.group(leader)
    trio.pass_time(1000)
    assert trio.group(3).applied == group.applied
    for step, member in ((Step.REMOVE, MemberId(3, 13)), (Step.PROMOTE, fresh)):
        [outcome] = trio.ask(leader, Reconfigure(71, ConfigurationChange(step, member), group.configuration_index, 0))
        assert isinstance(outcome, EntryCommitted)
    trio.pass_time(400)
    assert trio.group(3).configuration.voters == (*trio.members[:2], fresh)


def test_membership_changes_are_checked() -> None:
    trio, leader = led()
    group = trio.group(leader)
    stale = Reconfigure(1, ConfigurationChange(Step.ADD_LEARNER, MemberId(4, 1)), expected=77, wall_ms=0)
    assert trio.ask(leader, stale) == [RequestRefused("the configuration is that of entry 0")]
    own = Reconfigure(1, ConfigurationChange(Step.REMOVE, group.me), expected=0, wall_ms=0)
    assert trio.ask(leader, own) == [RequestRefused("the leader must transfer leadership before it is removed")]


def test_a_replica_behind_the_log_start_gets_the_record_and_then_entries() -> None:
    trio, _ = led()
    leader = leader_without(trio, 3)
    trio.cut_off = {3}
    for request in range(1, 11):
        stamp = Stamp(5, 0, request - 1, crc=request)
        trio.ask(leader, Propose(request, b"m", 1, 0, stamp))
    group = trio.group(leader)
    cut_index = group.applied - 2
    assert isinstance(trio.ask(leader, AdvanceLogStart(50, cut_index, group.applied_offset - 3, 0))[0], EntryCommitted)
    assert (group.log.start_index, group.log.start_offset) == (cut_index, 7)
    trio.cut_off = set()
    trio.rounds.clear()
    trio.pass_time(1000)
    follower = trio.group(3)
    assert (follower.log.start_index, follower.log.start_offset) == (cut_index, 7)
    assert follower.state.dedupe.snapshot() == group.state.dedupe.snapshot()
    sent = [s.frame.message for _, r in trio.rounds for s in r.sends if isinstance(s.frame, Envelope)]
    assert any(isinstance(m, InstallSnapshot) for m in sent)


def test_a_learner_votes_when_its_leader_is_gone() -> None:
    """Its promotion may be on its way: the leader that sent it may need this vote to lead again."""
    trio = Trio(voters=1)
    leader, learner = trio.members[0], MemberId(2, 12)
    trio.add(learner, new_replica(NO_MEMBERS))
    node, group = trio.nodes[2], trio.group(2)
    node.step(Envelope(GROUP, leader, learner, Append(1, 0, 0, (), 0)), 2000)
    assert group.leader == leader
    for now in range(2000, 5000, 100):  # its broker leads other groups
        node.step(Heartbeat(1, 7, now, 0, 1, ((RowKey(GroupId(GROUP.topic, 9), 1), Row(1, 1, 0)),)), now)
    assert group.leader is None
    node.drain()
    node.step(Envelope(GROUP, leader, learner, PreVote(2, 5, 1)), 5000)
    replies = [send.frame.message for send in node.drain().sends if isinstance(send.frame, Envelope)]
    assert replies == [PreVoteReply(2, granted=True)]


def test_a_log_that_lost_committed_entries_is_not_opened() -> None:
    trio = Trio()
    stored = Stored(HardState(term=3, commit=5), Snapshot())
    with pytest.raises(InvariantBroken):
        trio.add(MemberId(1, 11), stored)


def test_a_group_of_one_commits_by_itself() -> None:
    trio = Trio(voters=1)
    trio.pass_time(2500)
    assert trio.ask(1, message(1)) == [EntryCommitted(2, 0, 0)]
    assert trio.ask(1, Read(2)) == [ReadAt(2, 0, 1)]


def test_too_much_in_hand_is_refused() -> None:
    trio = Trio(RaftSettings(pending_bytes=200))
    trio.pass_time(3000)
    leader = trio.leader()
    trio.cut_off = {leader}
    trio.nodes[leader].step(GroupRequest(GROUP, Propose(1, b"x" * 300, 1, 0)), trio.now)
    [outcome] = trio.ask(leader, message(2))
    assert type(outcome).__name__ == "PendingFull"
