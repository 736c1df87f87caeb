"""A replica with a damaged batch does not lead while another voter can, and takes no vote away from its group."""

import pytest

from broker.raft.effects import Role
from broker.raft.events import Campaign, EntryCommitted, Propose, StopLeading, TransferLeadership
from broker.raft.node import GroupRequest
from tests.unit.raft.trio import GROUP, Trio


def message(request: int) -> Propose:
    return Propose(request, b"m%d" % request, 1, 0)


def led(voters: int = 3) -> tuple[Trio, int, list[int]]:
    trio = Trio(voters=voters)
    trio.pass_time(3000)
    leader = trio.leader()
    return trio, leader, [n for n in trio.nodes if n != leader]


def bar(trio: Trio, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        trio.ask(broker_id, StopLeading())
    trio.pass_time(300)


@pytest.mark.parametrize("voters", [2, 3])
def test_a_barred_leader_hands_over_at_once_and_goes_on_voting(voters: int) -> None:
    trio, leader, _ = led(voters)
    bar(trio, leader)
    successor = trio.leader()
    assert successor != leader
    [outcome] = trio.ask(successor, message(1))
    assert isinstance(outcome, EntryCommitted)
    trio.ask(successor, TransferLeadership(trio.group(leader).me))
    trio.pass_time(2000)
    assert trio.leader() == successor


def test_the_only_voter_goes_on_leading() -> None:
    trio, leader, _ = led(voters=1)
    bar(trio, leader)
    trio.pass_time(10_000)
    assert trio.ask(leader, message(1)) == [EntryCommitted(2, 0, 0)]


def test_a_barred_replica_does_not_campaign_when_placement_names_it() -> None:
    trio = Trio()
    trio.now = 1000
    bar(trio, 2)
    trio.ask(2, Campaign())
    assert trio.group(2).role is Role.FOLLOWER
    trio.pass_time(2500)
    assert trio.leader() != 2


def test_leadership_goes_to_a_barred_replica_only_when_there_is_no_other() -> None:
    trio, leader, followers = led()
    bar(trio, followers[0])
    trio.ask(leader, TransferLeadership(trio.group(followers[0]).me))
    assert trio.leader() == leader
    trio.ask(leader, TransferLeadership())
    assert trio.leader() == followers[1]
    bar(trio, leader)
    trio.ask(followers[1], TransferLeadership())
    assert trio.leader() in (leader, followers[0])
    trio.pass_time(1500)
    assert trio.leader() == followers[1]


def test_a_barred_candidate_gives_up() -> None:
    trio = Trio()
    trio.cut_off = {2}
    trio.pass_time(3000)
    assert trio.group(2).role is Role.PRE_CANDIDATE
    bar(trio, 2)
    assert trio.group(2).role is Role.FOLLOWER


def test_a_barred_leader_without_another_voter_keeps_leading_and_accepting() -> None:
    trio, leader, followers = led()
    bar(trio, *followers)
    term = trio.group(leader).term
    bar(trio, leader)
    for request in range(1, 40):
        trio.pass_time(500)
        [outcome] = trio.ask(leader, message(request))
        assert isinstance(outcome, EntryCommitted)
    assert trio.group(leader).term == term


def test_two_voters_stay_electable_when_only_the_barred_one_has_the_last_entry() -> None:
    trio, leader, followers = led(voters=2)
    trio.cut_off = {leader}
    trio.ask(leader, message(1))
    bar(trio, leader)
    trio.pass_time(2000)
    assert trio.group(leader).role is not Role.LEADER
    trio.cut_off = set()
    trio.pass_time(12_000)
    assert trio.leader() == followers[0]
    assert trio.group(followers[0]).applied_offset == 1


def test_a_successor_that_never_catches_up_costs_less_and_less() -> None:
    trio, leader, followers = led(voters=2)
    trio.full = {followers[0]}
    trio.nodes[leader].step(GroupRequest(GROUP, message(1)), trio.now)
    trio.settle()
    bar(trio, leader)
    transferring = 0
    for _ in range(100):
        trio.pass_time(300)
        transferring += trio.group(leader).membership.transfer_to is not None
    assert trio.group(leader).role is Role.LEADER
    assert 0 < transferring < 25
