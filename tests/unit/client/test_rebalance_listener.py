"""Callbacks of a rebalance: what is called with what, and what is handed out or released only after it."""

import threading

import pytest

from myqueue.consumer_waits import run_blocking
from myqueue.message import TopicPartition
from myqueue.poll_interval import MaxPollIntervalExceeded, PollInterval
from myqueue.rebalance_listener import RebalanceListener
from myqueue.subscription_state import PartitionLease, SubscriptionState
from tests.unit.client.test_subscription_state import chunk

Called = list[tuple[str, list[int]]]


class Member:
    def __init__(self, *, auto_commit: bool = False, with_lost: bool = True) -> None:
        self.called: Called = []
        self.subscription = SubscriptionState(auto_commit=auto_commit, has_callbacks=True)
        self.listener = RebalanceListener(
            "t",
            self.subscription,
            threading.Lock(),
            on_assign=lambda partitions: self._note("assign", partitions),
            on_revoke=lambda partitions: self._note("revoke", partitions),
            on_lost=(lambda partitions: self._note("lost", partitions)) if with_lost else None,
        )

    def _note(self, kind: str, partitions: list[TopicPartition]) -> None:
        assert {place.topic for place in partitions} == {"t"}
        self.called.append((kind, [place.partition for place in partitions]))

    def renew(self, *leases: tuple[int, bool], generation: int = 1) -> None:
        held = [PartitionLease(partition, generation, 0, revoking) for partition, revoking in leases]
        self.subscription.renew(held, 0.0, 100.0)

    def calls(self) -> Called:
        self.called.clear()
        run_blocking(self.listener.run_due())
        return list(self.called)

    def fetch(self, partition: int, count: int) -> None:
        state = self.subscription.get(partition)
        assert state is not None
        self.subscription.put(state, state.fetched, [chunk(partition, state.fetched, count)])

    def read(self) -> int:
        """The next offset after what is handed out."""
        self.subscription.finish_in_flight()
        taken = self.subscription.take(1.0)
        assert taken is not None
        self.subscription.hand_out(*taken, None)
        return taken[1].end


def test_nothing_is_handed_out_before_it_is_announced() -> None:
    member = Member()
    member.renew((1, False), (0, False))
    member.fetch(0, 5)
    assert not member.subscription.ready(1.0)
    assert member.subscription.take(1.0) is None
    assert member.calls() == [("assign", [0, 1])]
    assert member.calls() == []
    assert member.read() == 5


@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_partition_is_released_after_its_callback(auto_commit: bool) -> None:
    member = Member(auto_commit=auto_commit)
    member.renew((0, False), (1, False))
    member.calls()
    member.renew((0, False), (1, True))
    assert member.subscription.to_release() == []
    assert member.calls() == [("revoke", [1])]
    assert member.subscription.to_release() == [1]
    member.subscription.lose(1)
    assert member.calls() == [], "it was revoked, not lost"


def test_a_callback_that_fails_gives_the_partition_up_too() -> None:
    member = Member()
    member.renew((0, False), (1, False))
    member.calls()
    member.renew((0, False), (1, True))
    member.listener._on_revoke = lambda _: [][1]
    with pytest.raises(IndexError):
        run_blocking(member.listener.run_due())
    assert member.subscription.to_release() == [1]


@pytest.mark.parametrize(("with_lost", "kind"), [(True, "lost"), (False, "revoke")])
def test_what_is_gone_is_told_as_lost(with_lost: bool, kind: str) -> None:
    member = Member(with_lost=with_lost)
    member.renew((0, False), (1, False))
    member.calls()
    member.renew((0, False))
    assert member.calls() == [(kind, [1])]


def test_a_new_generation_is_a_loss_unless_this_member_sought() -> None:
    member = Member()
    member.renew((0, False))
    member.calls()
    member.subscription.seeking = 1
    member.renew((0, False), generation=2)
    assert member.calls() == []
    member.subscription.seeking = 0
    member.renew((0, False), generation=3)
    assert member.calls() == [("lost", [0]), ("assign", [0])]


@pytest.mark.parametrize(("auto_commit", "position"), [(True, 5), (False, 0)])
def test_a_revocation_that_is_withdrawn(auto_commit: bool, position: int) -> None:
    """What the application gave up without a commit comes again; what counts as handled does not."""
    member = Member(auto_commit=auto_commit)
    member.renew((0, False))
    member.calls()
    member.fetch(0, 5)
    assert member.read() == 5
    member.subscription.finish_in_flight()
    member.renew((0, True))
    assert member.calls() == [("revoke", [0])]
    member.renew((0, False))
    assert member.subscription.to_release() == []
    assert member.calls() == [("assign", [0])]
    assert member.subscription.positions() == {0: position}


def test_a_consumer_that_is_closed_calls_back_and_keeps_its_positions_for_commits_on_their_way() -> None:
    member = Member()
    member.renew((0, False))
    member.calls()
    state = member.subscription.get(0)
    assert state is not None
    resets = state.resets
    call = member.listener.last_call()
    assert call is not None
    run_blocking(member.listener.run(call))
    assert member.called[-1] == ("revoke", [0])
    assert state.resets == resets
    assert member.listener.last_call() is None


def test_a_partition_that_comes_and_goes_unseen_is_not_told() -> None:
    member = Member()
    member.renew((0, False))
    member.calls()
    member.renew((0, False), (1, False))
    member.renew((0, False), (1, True))
    assert member.calls() == []
    assert member.subscription.to_release() == [1]


def test_a_manual_commit_keeps_partitions_until_the_next_call() -> None:
    subscription = SubscriptionState(auto_commit=False)
    subscription.renew([PartitionLease(0, 1, 0, False)], 0.0, 100.0)
    subscription.renew([PartitionLease(0, 1, 0, True)], 0.0, 100.0)
    assert subscription.to_release() == []
    assert subscription.finish_in_flight()
    assert subscription.to_release() == [0]


def test_who_stays_away_for_too_long_is_told_once() -> None:
    interval = PollInterval(10.0, "consumer 'c'")
    assert interval.enter(0.0) is None
    assert not interval.check(1, 100.0), "waiting is polling"
    interval.leave(100.0)
    assert not interval.check(1, 109.0)
    assert not interval.check(2, 111.0), "a message was taken"
    assert not interval.check(2, 120.0)
    assert interval.check(2, 121.0)
    assert not interval.check(2, 122.0), "the member leaves once"
    assert interval.is_exceeded
    told = interval.enter(141.0)
    assert isinstance(told, MaxPollIntervalExceeded)
    assert "no poll for 30 seconds, and max_poll_interval_s is 10" in str(told)
    assert not interval.is_exceeded
    assert interval.enter(142.0) is None
    with pytest.raises(ValueError, match="max_poll_interval_s must be more than 0"):
        PollInterval(0, "consumer 'c'")
