"""A leader whose followers are faster than its own disk answers when the entry is committed, and applies it later."""

from broker.raft.effects import Role
from broker.raft.events import AdvanceLogStart, EntryCommitted, Propose, Read, ReadAt
from broker.raft.node import Durable
from tests.unit.raft.trio import GROUP, Trio


def led() -> tuple[Trio, int]:
    trio = Trio()
    trio.pass_time(3000)
    return trio, trio.leader()


def catch_up(trio: Trio, broker_id: int) -> None:
    """Its disk answers for everything so far."""
    trio.stuck = set()
    last = max(round_.number for id_, round_ in trio.rounds if id_ == broker_id)
    trio.nodes[broker_id].step(Durable(last), trio.now)
    trio.settle()


def test_the_answer_does_not_wait_for_the_own_disk() -> None:
    trio, leader = led()
    group = trio.group(leader)
    before = group.applied
    trio.stuck = {leader}
    trio.rounds.clear()
    [outcome] = trio.ask(leader, Propose(7, b"m", 1, 0))
    assert isinstance(outcome, EntryCommitted)
    assert group.applied == before, "its disk does not have it"
    [shown] = [committed for _, round_ in trio.rounds for committed in round_.committed]
    assert (shown.group, shown.end_offset, [entry.body for entry in shown.entries]) == (GROUP, 1, [b"m"])

    trio.resolved.clear()
    catch_up(trio, leader)
    assert group.applied == before + 1
    assert trio.resolved == [], "a request is answered once"


def test_nothing_is_shown_before_a_majority_has_it() -> None:
    trio, leader = led()
    trio.stuck = set(trio.nodes)
    trio.cut_off = set(trio.nodes) - {leader}
    trio.rounds.clear()
    assert trio.ask(leader, Propose(7, b"m", 1, 0)) == []
    assert not any(round_.committed for _, round_ in trio.rounds)


def test_the_end_covers_what_was_answered() -> None:
    """A read of the end waits for the own disk: what it says may be read from the files too."""
    trio, leader = led()
    trio.stuck = {leader}
    trio.ask(leader, Propose(7, b"m", 1, 0))
    assert trio.ask(leader, Read(8)) == []
    trio.resolved.clear()
    catch_up(trio, leader)
    assert [resolved.outcome for resolved in trio.resolved] == [ReadAt(trio.group(leader).applied, 0, 1)]


def test_a_cut_is_answered_when_it_is_applied() -> None:
    trio, leader = led()
    trio.ask(leader, Propose(7, b"m", 1, 0))
    group = trio.group(leader)
    trio.stuck = {leader}
    assert trio.ask(leader, AdvanceLogStart(8, group.applied + 1, 1, 0)) == []
    trio.resolved.clear()
    catch_up(trio, leader)
    assert isinstance(trio.resolved[0].outcome, EntryCommitted)


def test_what_was_answered_survives_a_leader_that_never_had_it_on_disk() -> None:
    trio, leader = led()
    trio.stuck = {leader}
    [outcome] = trio.ask(leader, Propose(7, b"m", 1, 0))
    assert isinstance(outcome, EntryCommitted)
    trio.cut_off = {leader}
    trio.pass_time(4000)
    successor = trio.leader()
    assert trio.group(successor).applied_offset == 1, "what was answered is committed"
    assert trio.group(leader).role is not Role.LEADER
