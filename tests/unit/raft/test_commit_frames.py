"""Followers learn the commit index soon after the leader, with the next Append or a frame between two heartbeats."""

from broker.raft.events import Propose
from broker.raft.messages import NO_REPLY, Heartbeat, HeartbeatReply
from tests.unit.raft.trio import Trio


def commit_frames(trio: Trio) -> list[Heartbeat]:
    sent = [send.frame for _, round_ in trio.rounds for send in round_.sends]
    return [frame for frame in sent if isinstance(frame, Heartbeat) and frame.sent_at == NO_REPLY]


def test_followers_learn_the_commit_index_before_the_next_heartbeat() -> None:
    trio = Trio()
    trio.pass_time(3000)
    leader = trio.leader()
    until_beat = next(s.frame.sent_at for _, r in trio.rounds[::-1] for s in r.sends if isinstance(s.frame, Heartbeat))
    trio.pass_time(until_beat + 220 - trio.now)  # just after a heartbeat
    trio.rounds.clear()
    trio.ask(leader, Propose(1, b"m", 1, 0))
    trio.pass_time(20)
    assert {trio.group(n).applied for n in trio.nodes} == {trio.group(leader).log.last_index}
    assert len(commit_frames(trio)) == 2  # one for each follower, without an answer
    assert not [s for _, r in trio.rounds for s in r.sends if isinstance(s.frame, HeartbeatReply)]


def test_an_append_that_follows_at_once_carries_the_commit_index() -> None:
    trio = Trio()
    trio.pass_time(3000)
    leader = trio.leader()
    trio.ask(leader, Propose(1, b"m", 1, 0))
    trio.ask(leader, Propose(2, b"m", 1, 0))
    trio.rounds.clear()
    trio.pass_time(20)
    [rows] = {tuple(row for _, row in frame.rows) for frame in commit_frames(trio)}
    assert [row.commit for row in rows if row is not None] == [trio.group(leader).log.last_index]
    trio.rounds.clear()
    trio.pass_time(150)
    assert commit_frames(trio) == []  # nothing for an idle group


def test_a_lost_commit_frame_is_made_good_by_the_next_heartbeat() -> None:
    trio = Trio()
    trio.pass_time(3000)
    leader = trio.leader()
    follower = next(n for n in trio.nodes if n != leader)
    trio.ask(leader, Propose(1, b"m", 1, 0))
    trio.cut_off = {follower}
    trio.pass_time(20)
    trio.cut_off = set()
    trio.ask(leader, Propose(2, b"m", 1, 0))
    trio.pass_time(400)
    assert trio.group(follower).applied == trio.group(leader).log.last_index
