"""Full disks: refused before anything is appended, refused explicitly by followers, and healed without an election."""

from broker.raft.configuration import ConfigurationChange, MemberId, Step
from broker.raft.context import RaftSettings
from broker.raft.effects import Send
from broker.raft.events import AdvanceLogStart, EntryCommitted, PendingFull, Propose, QuorumFull, Reconfigure
from broker.raft.messages import Append, AppendRefused, Envelope, Message
from broker.raft.node import DiskSpace, GroupRequest
from tests.unit.raft.trio import GROUP, Trio

TIME_FOR_A_HEARTBEAT = 300
TIME_FOR_A_RETRY = 1100


def message(request: int) -> Propose:
    return Propose(request, b"m%d" % request, 1, 0)


def led(settings: RaftSettings | None = None) -> tuple[Trio, int, list[int]]:
    trio = Trio(settings)
    trio.pass_time(3000)
    leader = trio.leader()
    return trio, leader, [n for n in trio.nodes if n != leader]


def set_low(trio: Trio, low: bool, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        trio.nodes[broker_id].step(DiskSpace(low), trio.now)
    trio.pass_time(TIME_FOR_A_HEARTBEAT)


def sent(trio: Trio, kind: type[Message]) -> list[Send]:
    sends = [send for _, round_ in trio.rounds for send in round_.sends]
    return [s for s in sends if isinstance(s.frame, Envelope) and isinstance(s.frame.message, kind)]


def test_messages_are_refused_before_anything_is_sent_when_a_majority_is_full() -> None:
    trio, leader, followers = led()
    set_low(trio, True, followers[0])
    assert trio.ask(leader, message(1)) == [EntryCommitted(2, 0, 0)]
    set_low(trio, True, followers[1])
    trio.rounds.clear()
    assert trio.ask(leader, message(2)) == [QuorumFull()]
    assert trio.group(leader).log.last_index == 2
    assert not sent(trio, Append)
    set_low(trio, False, followers[0])
    assert trio.ask(leader, message(3)) == [EntryCommitted(3, 1, 0)]


def test_a_leader_counts_its_own_disk() -> None:
    trio = Trio(voters=1)
    trio.pass_time(3000)
    set_low(trio, True, 1)
    assert trio.ask(1, message(1)) == [QuorumFull()]
    set_low(trio, False, 1)
    assert trio.ask(1, message(2)) == [EntryCommitted(2, 0, 0)]


def test_a_leader_on_a_low_disk_hands_over_to_a_voter_with_room() -> None:
    trio, leader, followers = led()
    set_low(trio, True, leader, followers[0])
    trio.pass_time(500)
    assert trio.leader() == followers[1]
    assert trio.ask(followers[1], message(1)) == [QuorumFull()]
    set_low(trio, False, followers[0])
    assert trio.ask(followers[1], message(2)) == [EntryCommitted(3, 0, 0)]


def test_leadership_stays_where_it_is_when_all_disks_are_low() -> None:
    trio, leader, _ = led()
    set_low(trio, True, *trio.nodes)
    trio.pass_time(10_000)
    assert trio.leader() == leader
    assert trio.ask(leader, message(1)) == [QuorumFull()]


def test_a_peer_without_contact_does_not_count_as_full() -> None:
    trio, leader, followers = led()
    set_low(trio, True, *followers)
    trio.cut_off = {followers[0]}
    trio.pass_time(1500)
    assert trio.ask(leader, message(1)) == [EntryCommitted(2, 0, 0)]


def test_cuts_and_changes_get_through_on_full_disks() -> None:
    trio, leader, _ = led()
    trio.ask(leader, message(1))
    set_low(trio, True, *trio.nodes)
    trio.cut_off = {9}  # the learner is not up yet
    change = ConfigurationChange(Step.ADD_LEARNER, MemberId(9, 9))
    [outcome] = trio.ask(leader, Reconfigure(2, change, trio.group(leader).configuration_index, 0))
    assert isinstance(outcome, EntryCommitted)
    [outcome] = trio.ask(leader, AdvanceLogStart(3, 3, 1, 0))
    assert isinstance(outcome, EntryCommitted)
    trio.pass_time(TIME_FOR_A_HEARTBEAT)
    assert {trio.group(n).log.start_index for n in trio.nodes} == {3}


def test_a_refusal_is_an_answer_of_a_live_follower_and_stops_the_stream_to_it() -> None:
    trio, leader, followers = led()
    full, term = followers[0], trio.group(leader).term
    trio.full = {full}
    trio.ask(leader, message(1))
    assert len(sent(trio, AppendRefused)) == 1
    trio.rounds.clear()
    trio.ask(leader, message(2))
    assert [send.broker_id for send in sent(trio, Append)] == [followers[1]]
    trio.pass_time(5000)
    assert trio.group(full).log.last_index == 1
    assert trio.group(leader).term == term
    assert 4 <= len(sent(trio, AppendRefused)) <= 11  # once for each retry
    trio.full = set()
    trio.pass_time(TIME_FOR_A_RETRY)
    assert trio.group(full).applied == trio.group(leader).applied == 3
    assert trio.group(leader).term == term


def test_room_reported_by_a_heartbeat_ends_the_wait() -> None:
    slow = RaftSettings(retry_ms=60_000)
    trio, leader, followers = led(slow)
    full = followers[0]
    set_low(trio, True, full)
    trio.full = {full}
    trio.ask(leader, message(1))
    trio.full = set()
    trio.pass_time(5000)
    assert trio.group(full).log.last_index == 1
    set_low(trio, False, full)
    assert trio.group(full).log.last_index == 2


def test_a_retention_cut_is_stored_where_messages_are_refused() -> None:
    trio, leader, followers = led()
    trio.ask(leader, message(1))
    trio.full = set(followers)
    [outcome] = trio.ask(leader, AdvanceLogStart(2, 3, 1, 0))
    assert isinstance(outcome, EntryCommitted)


def test_a_newer_term_is_adopted_with_the_refusal_and_stored_before_it_is_sent() -> None:
    trio, leader, followers = led()
    node, group = trio.nodes[followers[0]], trio.group(followers[0])
    trio.nodes[leader].step(GroupRequest(GROUP, message(1)), trio.now)
    [append] = [s for s in trio.nodes[leader].drain().sends if s.broker_id == followers[0]]
    assert isinstance(append.frame, Envelope)
    assert isinstance(append.frame.message, Append)
    newer = Append(group.term + 5, 1, group.term, append.frame.message.entries, 0)
    node.refuse(append.frame._replace(message=newer), trio.now)
    round_ = node.drain()
    assert [persist.hard.term for persist in round_.persists] == [newer.term]
    assert [(s.frame.message, s.after) for s in round_.sends if isinstance(s.frame, Envelope)] == [
        (AppendRefused(newer.term), round_.number)
    ]
    assert group.log.last_index == 1


def test_entries_that_cannot_be_read_are_not_asked_for_in_a_loop() -> None:
    trio, leader, followers = led(RaftSettings(tail_bytes=0))
    trio.cut_off = {followers[0]}
    for request in range(1, 5):
        trio.ask(leader, message(request))
    trio.pass_time(1500)
    disk, trio.disks[leader] = trio.disks[leader], {}
    trio.cut_off = set()
    trio.rounds.clear()
    trio.pass_time(5000)
    loads = [load for _, round_ in trio.rounds for load in round_.loads]
    assert 2 <= len(loads) <= 12
    trio.disks[leader] = disk
    trio.pass_time(TIME_FOR_A_RETRY)
    assert trio.group(followers[0]).applied == trio.group(leader).applied


def test_bytes_in_flight_are_bounded_for_all_groups_together() -> None:
    trio, leader, followers = led(RaftSettings(pending_bytes_total=200))
    context = trio.group(leader).context
    trio.cut_off = {leader}
    trio.nodes[leader].step(GroupRequest(GROUP, Propose(1, b"x" * 300, 1, 0)), trio.now)
    assert [type(outcome) for outcome in trio.ask(leader, message(2))] == [PendingFull]
    trio.pass_time(1500)
    assert context.pending_bytes == 0
    trio.cut_off = set()
    trio.pass_time(3000)
    assert all(trio.group(n).context.pending_bytes == 0 for n in (leader, *followers))
