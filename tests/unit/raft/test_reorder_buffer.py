"""Batches of a producer that arrive in another order than they were sent."""

import itertools

import pytest

from broker.raft.context import RaftSettings
from broker.raft.dedupe import Problem, Repeat
from broker.raft.entry import Stamp
from broker.raft.events import DedupeOutcome, EntryCommitted, NotGroupLeader, Outcome, Propose, TransferLeadership
from broker.raft.node import GroupRequest
from tests.unit.raft.trio import GROUP, Trio


def batch(request: int, sequence: int, *, producer: int = 7, epoch: int = 1, size: int = 10) -> Propose:
    return Propose(request, b"x" * size, 1, 0, Stamp(producer, epoch, sequence, crc=sequence))


def led(settings: RaftSettings | None = None) -> tuple[Trio, int]:
    trio = Trio(settings)
    trio.pass_time(3000)
    return trio, trio.leader()


def outcomes(trio: Trio) -> dict[int, Outcome]:
    return {resolved.request: resolved.outcome for resolved in trio.resolved}


def send_all(trio: Trio, leader: int, *events: Propose) -> dict[int, Outcome]:
    trio.resolved.clear()
    for event in events:
        trio.nodes[leader].step(GroupRequest(GROUP, event), trio.now)
        trio.settle()
    return outcomes(trio)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_batches_in_any_order_are_appended_in_theirs(order: tuple[int, ...]) -> None:
    trio, leader = led()
    found = send_all(trio, leader, *[batch(sequence + 1, sequence) for sequence in order])
    assert {
        request: outcome.base_offset for request, outcome in found.items() if isinstance(outcome, EntryCommitted)
    } == {sequence + 1: sequence for sequence in range(4)}


def test_it_follows_as_soon_as_its_predecessor_is_in_the_log() -> None:
    trio, leader = led()
    trio.cut_off = set(trio.nodes) - {leader}  # nothing is committed
    last = trio.group(leader).log.last_index
    send_all(trio, leader, batch(2, 1), batch(1, 0))
    assert trio.group(leader).log.last_index == last + 2


def test_a_gap_that_remains_is_refused_after_a_while() -> None:
    trio, leader = led()
    send_all(trio, leader, batch(1, 0))
    assert send_all(trio, leader, batch(3, 2)) == {}
    trio.pass_time(400)
    assert outcomes(trio) == {}
    trio.pass_time(200)
    assert outcomes(trio) == {3: DedupeOutcome(Problem.GAP, ())}
    found = send_all(trio, leader, batch(4, 1), batch(5, 2))
    assert [type(outcome) for outcome in found.values()] == [EntryCommitted, EntryCommitted]


def test_each_waits_its_own_time() -> None:
    trio, leader = led()
    send_all(trio, leader, batch(1, 5))
    trio.pass_time(300)
    send_all(trio, leader, batch(2, 6))
    trio.pass_time(240)
    assert outcomes(trio) == {1: DedupeOutcome(Problem.UNKNOWN_PRODUCER, ())}
    trio.pass_time(300)
    assert outcomes(trio)[2] == DedupeOutcome(Problem.UNKNOWN_PRODUCER, ())


def test_the_first_batches_of_an_epoch_wait_for_its_first() -> None:
    trio, leader = led()
    send_all(trio, leader, batch(1, 0))
    found = send_all(trio, leader, batch(3, 1, epoch=2), batch(2, 0, epoch=2))
    assert [outcome.base_offset for outcome in (found[2], found[3]) if isinstance(outcome, EntryCommitted)] == [1, 2]


def test_a_newer_epoch_fences_what_waits() -> None:
    trio, leader = led()
    found = send_all(trio, leader, batch(1, 0), batch(2, 5), batch(3, 0, epoch=2))
    assert found[2] == DedupeOutcome(Problem.FENCED, ())


def test_a_batch_that_waits_twice_is_appended_once() -> None:
    trio, leader = led()
    found = send_all(trio, leader, batch(2, 1), batch(3, 1), batch(1, 0))
    assert isinstance(found[2], EntryCommitted)
    assert found[3] == DedupeOutcome(Repeat(found[2].base_offset), ())


def test_only_so_many_of_a_producer_wait() -> None:
    trio, leader = led()
    found = send_all(trio, leader, *[batch(request, request) for request in range(1, 10)])
    assert found == {9: DedupeOutcome(Problem.UNKNOWN_PRODUCER, ())}
    assert send_all(trio, leader, batch(20, 1, producer=8)) == {}  # another one's do


def test_only_so_many_bytes_of_a_broker_wait() -> None:
    trio, leader = led(RaftSettings(reorder_bytes_total=100))
    found = send_all(trio, leader, batch(1, 1, size=60), batch(2, 1, producer=8, size=60))
    assert found == {2: DedupeOutcome(Problem.UNKNOWN_PRODUCER, ())}
    trio.pass_time(600)
    assert send_all(trio, leader, batch(3, 1, producer=8, size=60)) == {}  # the room came back


def test_what_waits_when_leadership_ends_is_not_written() -> None:
    trio, leader = led()
    send_all(trio, leader, batch(1, 1))
    trio.nodes[leader].step(GroupRequest(GROUP, TransferLeadership()), trio.now)
    trio.pass_time(100)
    assert trio.leader() != leader
    assert isinstance(outcomes(trio)[1], NotGroupLeader)
    assert trio.group(leader).context.reorder_bytes == 0
