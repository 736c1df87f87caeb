"""Single decisions of a group that a reader of the design would look for."""

import pytest

from broker.raft.configuration import NOBODY, Change, Step
from broker.raft.dedupe import Problem, Repeat
from broker.raft.effects import Role
from broker.raft.entry import Stamp
from broker.raft.events import (
    Campaign,
    Committed,
    Judged,
    Lost,
    NotLeader,
    NotReady,
    Propose,
    Read,
    ReadAt,
    Reconfigure,
    Refused,
    Retain,
    Transfer,
)
from broker.raft.identity import Member
from broker.raft.messages import (
    Append,
    AppendReply,
    Envelope,
    Heartbeat,
    InstallSnapshot,
    PreVoteReply,
    Vote,
    VoteReply,
)
from broker.raft.node import Durable, Request
from broker.raft.replica import InvariantBroken
from broker.raft.settings import Settings
from broker.raft.snapshot import HardState, Snapshot, Stored, founding
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
    assert first == [Committed(2, 0, 500)]
    assert second == [Committed(3, 3, 500)]
    assert trio.ask(leader, Read(3)) == [ReadAt(3, 0, 4)]


def test_a_follower_takes_nothing_and_names_the_leader() -> None:
    trio, leader = led()
    follower = next(n for n in trio.nodes if n != leader)
    assert trio.ask(follower, message(1)) == [NotLeader(trio.group(leader).me)]


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
    node.step(Request(GROUP, message(1)), trio.now)
    round_ = node.drain()
    appends = [s for s in round_.sends if isinstance(s.frame, Envelope) and isinstance(s.frame.message, Append)]
    assert len(appends) == 2
    assert all(send.after == 0 for send in appends)
    other = next(m for m in trio.members if m != group.me)
    node.step(Envelope(GROUP, other, group.me, AppendReply(group.term, 1, 2)), trio.now)
    assert group.commit == 1
    node.step(Durable(round_.number), trio.now)
    assert group.commit == 2
    assert [r.outcome for r in node.drain().resolved] == [Committed(2, 0, 0)]


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
        node.step(Request(GROUP, event), 3000)
    first = node.drain()
    assert [r.outcome for r in first.resolved] == [NotReady(), NotReady()]
    node.step(Durable(first.number), 3000)
    node.step(Envelope(GROUP, other, group.me, AppendReply(1, 0, 1)), 3000)
    node.step(Request(GROUP, message(3)), 3000)
    assert node.drain().resolved == []
    assert group.waiting == {2: 3}


def test_a_leader_without_its_majority_resigns_and_its_request_is_unknown() -> None:
    trio, leader = led()
    trio.cut_off = {leader}
    assert trio.ask(leader, message(1)) == []
    assert trio.ask(leader, Read(2)) == []
    trio.pass_time(1500)
    assert trio.group(leader).role is not Role.LEADER
    assert sorted(type(r.outcome).__name__ for r in trio.resolved) == ["Lost", "NotLeader"]
    assert Lost() in [r.outcome for r in trio.resolved]
    trio.pass_time(2500)
    other = next(n for n in trio.nodes if n != leader and trio.group(n).role is Role.LEADER)
    assert trio.ask(other, message(3)) == [Committed(3, 0, 0)]
    trio.cut_off = set()
    trio.pass_time(2000)
    assert {trio.group(n).applied for n in trio.nodes} == {3}


def test_repeats_and_mistakes_are_told_only_with_a_majority_behind_it() -> None:
    trio, leader = led()
    stamped = Propose(1, b"a", 1, 0, Stamp(9, 0, 0, crc=1))
    assert trio.ask(leader, stamped) == [Committed(2, 0, 0)]
    assert trio.ask(leader, stamped) == [Judged(Repeat(0), ())]
    assert trio.ask(leader, Propose(2, b"b", 1, 0, Stamp(9, 0, 0, crc=2))) == [Judged(Problem.CONFLICT, ())]
    trio.cut_off = {leader}
    assert trio.ask(leader, stamped) == []


def test_handing_over_costs_no_election_timeout() -> None:
    trio, leader = led()
    target = next(m for m in trio.members if m.broker_id != leader)
    trio.ask(leader, Transfer(target))
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
    node.step(Envelope(GROUP, trio.members[1], Member(1, 999), Vote(9, 50, 8, transfer=True)), 2000)
    assert trio.group(1).term == 0


def replace_broker_3(trio: Trio, leader: int) -> Member:
    fresh = Member(3, 99)
    trio.add(fresh, founding(NOBODY))
    expected = trio.group(leader).configuration_index
    assert trio.ask(leader, Reconfigure(70, Change(Step.ADD_LEARNER, fresh), expected, 0))
    return fresh


def leader_without(trio: Trio, broker_id: int) -> int:
    leader = trio.leader()
    if leader == broker_id:
        trio.ask(leader, Transfer())
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
    for step, member in ((Step.REMOVE, Member(3, 13)), (Step.PROMOTE, fresh)):
        [outcome] = trio.ask(leader, Reconfigure(71, Change(step, member), group.configuration_index, 0))
        assert isinstance(outcome, Committed)
    trio.pass_time(400)
    assert trio.group(3).configuration.voters == (*trio.members[:2], fresh)


def test_membership_changes_are_checked() -> None:
    trio, leader = led()
    group = trio.group(leader)
    stale = Reconfigure(1, Change(Step.ADD_LEARNER, Member(4, 1)), expected=77, wall_ms=0)
    assert trio.ask(leader, stale) == [Refused("the configuration is that of entry 0")]
    own = Reconfigure(1, Change(Step.REMOVE, group.me), expected=0, wall_ms=0)
    assert trio.ask(leader, own) == [Refused("the leader hands over before it leaves")]


def test_a_replica_behind_the_log_start_gets_the_record_and_then_entries() -> None:
    trio, _ = led()
    leader = leader_without(trio, 3)
    trio.cut_off = {3}
    for request in range(1, 11):
        stamp = Stamp(5, 0, request - 1, crc=request)
        trio.ask(leader, Propose(request, b"m", 1, 0, stamp))
    group = trio.group(leader)
    cut_index = group.applied - 2
    assert isinstance(trio.ask(leader, Retain(50, cut_index, group.applied_offset - 3, 0))[0], Committed)
    assert (group.log.start_index, group.log.start_offset) == (cut_index, 7)
    trio.cut_off = set()
    trio.rounds.clear()
    trio.pass_time(1000)
    follower = trio.group(3)
    assert (follower.log.start_index, follower.log.start_offset) == (cut_index, 7)
    assert follower.dedupe.record() == group.dedupe.record()
    sent = [s.frame.message for _, r in trio.rounds for s in r.sends if isinstance(s.frame, Envelope)]
    assert any(isinstance(m, InstallSnapshot) for m in sent)


def test_a_log_that_lost_committed_entries_is_not_opened() -> None:
    trio = Trio()
    stored = Stored(HardState(term=3, commit=5), Snapshot())
    with pytest.raises(InvariantBroken):
        trio.add(Member(1, 11), stored)


def test_a_group_of_one_commits_by_itself() -> None:
    trio = Trio(voters=1)
    trio.pass_time(2500)
    assert trio.ask(1, message(1)) == [Committed(2, 0, 0)]
    assert trio.ask(1, Read(2)) == [ReadAt(2, 0, 1)]


def test_too_much_in_hand_is_refused() -> None:
    trio = Trio(Settings(pending_bytes=200))
    trio.pass_time(3000)
    leader = trio.leader()
    trio.cut_off = {leader}
    trio.nodes[leader].step(Request(GROUP, Propose(1, b"x" * 300, 1, 0)), trio.now)
    [outcome] = trio.ask(leader, message(2))
    assert type(outcome).__name__ == "Overloaded"
