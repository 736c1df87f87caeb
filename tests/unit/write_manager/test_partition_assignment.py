"""PartitionLeases of one consumer: one holder at a time, even shares, nothing stuck, whatever the members do."""

import itertools
import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from myqueue.protocol.errors import StaleLease, TooManyRequests
from write_manager.partition_assignment import MAX_MEMBERS, NO_CLIENT, HeldLease, MemberClient, PartitionLeases

TTL_S = 3.0


def leases(partitions: int, not_before_s: float = 0.0) -> PartitionLeases:
    return PartitionLeases(range(partitions), itertools.count(1).__next__, ttl_s=TTL_S, not_before_s=not_before_s)


def ids(held: list[HeldLease], *, revoking: bool | None = None) -> list[int]:
    return [lease.partition_id for lease in held if revoking in (None, lease.revoking)]


def test_a_second_member_gets_its_half_after_the_first_lets_go() -> None:
    consumer = leases(4)
    assert ids(consumer.poll("a", 0.0)) == [0, 1, 2, 3]
    assert consumer.poll("b", 0.1) == []
    told = consumer.poll("a", 0.2)
    assert ids(told, revoking=True) == [2, 3]
    assert consumer.poll("b", 0.3) == [], "not before they are released"
    assert ids(consumer.poll("a", 0.4, released=[2, 3])) == [0, 1]
    assert ids(consumer.poll("b", 0.5)) == [2, 3]
    assert ids(consumer.poll("a", 0.6), revoking=True) == []


def test_a_holder_that_never_lets_go_loses_the_partition_in_time() -> None:
    consumer = leases(2)
    consumer.poll("a", 0.0)
    now_s = 0.0
    while not (held := consumer.poll("b", now_s)):
        consumer.poll("a", now_s)
        now_s += 0.5
        assert now_s <= 2 * TTL_S + 1
    assert now_s > TTL_S
    assert ids(held) == [1]
    assert ids(consumer.poll("a", now_s)) == [0]


def test_the_partitions_of_a_silent_member_move() -> None:
    consumer = leases(3)
    consumer.poll("a", 0.0)
    assert consumer.poll("b", TTL_S - 0.01) == []
    assert ids(consumer.poll("b", TTL_S)) == [0, 1, 2]
    assert consumer.poll("a", TTL_S + 0.1) == [], "it comes back as a new member"


def test_while_polls_are_refused_nothing_expires_and_then_all_begin_anew() -> None:
    """Members read on meanwhile: under another generation they would read again what they have not committed."""
    since_s = 0.0
    consumer = PartitionLeases(range(4), itertools.count(1).__next__, ttl_s=TTL_S, decides_since_s=lambda: since_s)
    before = consumer.poll("a", 0.0)
    consumer.poll("b", 0.1)
    assert ids(consumer.poll("a", 0.2), revoking=True) == [2, 3]
    since_s = math.inf
    for now_s in (TTL_S, 10 * TTL_S):
        assert consumer.holders(now_s) == dict.fromkeys(range(4), "a")
        consumer.check(0, "a", before[0].generation, now_s)
        assert not consumer.idle(now_s)
        assert consumer.to_notify(now_s) in ([], ["a"], ["b"])
    since_s = again_s = 20 * TTL_S
    consumer.check(0, "a", before[0].generation, again_s + TTL_S - 0.01)
    assert [lease.generation for lease in consumer.poll("a", again_s + TTL_S - 0.01)] == [1, 2, 3, 4]
    assert consumer.poll("b", again_s + TTL_S - 0.01) == [], "a member that has not let go gets its time anew, too"
    assert ids(consumer.poll("a", again_s + TTL_S + 0.5)) == [0, 1, 2, 3]
    assert consumer.poll("b", again_s + TTL_S + 1) == []
    assert consumer.holders(again_s + 2 * TTL_S) == {0: "a", 1: "a"}
    assert ids(consumer.poll("b", again_s + 2 * TTL_S)) == [2, 3]
    assert consumer.holders(again_s + 4 * TTL_S) == {}, "and then silent members expire as ever"


def test_a_member_that_leaves_frees_its_partitions_at_once() -> None:
    consumer = leases(2)
    consumer.poll("a", 0.0)
    consumer.leave("a", 0.1)
    assert consumer.idle(0.1)
    assert ids(consumer.poll("b", 0.1)) == [0, 1]


def test_more_members_than_partitions() -> None:
    consumer = leases(1)
    assert ids(consumer.poll("a", 0.0)) == [0]
    assert consumer.poll("b", 0.0) == []
    assert ids(consumer.poll("a", 0.1), revoking=True) == []
    assert not consumer.idle(TTL_S)
    assert consumer.idle(TTL_S + 0.1)


def test_the_number_of_members_is_limited() -> None:
    consumer = leases(1)
    for number in range(MAX_MEMBERS):
        consumer.poll(str(number), 0.0)
    with pytest.raises(TooManyRequests):
        consumer.poll("one more", 0.0)
    assert ids(consumer.poll("0", 0.1)) == [0]


def test_who_a_member_is_stays_known_until_it_is_gone() -> None:
    consumer = leases(1)
    till = MemberClient("till-1", "shop")
    consumer.poll("a", 0.0, client=till)
    consumer.poll("a", 1.0)  # a renewal does not name it again
    assert (consumer.client("a"), consumer.client("b"), consumer.client(None)) == (till, NO_CLIENT, NO_CLIENT)
    consumer.leave("a", 1.0)
    assert consumer.client("a") == NO_CLIENT
    consumer.poll("a", 2.0, client=till)
    consumer.holders(2.0 + TTL_S)
    assert consumer.client("a") == NO_CLIENT


def test_who_may_commit() -> None:
    consumer = leases(2)
    first = consumer.poll("a", 0.0)[0]
    consumer.check(0, "a", first.generation, 0.1)
    consumer.check(0, "a", None, 0.1)
    for member, generation in (("b", None), ("b", first.generation), ("a", first.generation + 100)):
        with pytest.raises(StaleLease):
            consumer.check(0, member, generation, 0.1)
    renewed = consumer.renew(0)
    with pytest.raises(StaleLease):
        consumer.check(0, "a", first.generation, 0.1)
    consumer.check(0, "a", renewed, 0.1)
    consumer.check(0, "anyone", None, TTL_S)  # nobody holds it any more
    with pytest.raises(StaleLease):
        consumer.check(0, "a", renewed, TTL_S)


def test_nothing_is_leased_while_leases_of_an_earlier_write_manager_may_last() -> None:
    consumer = leases(2, not_before_s=10.0)
    assert consumer.poll("a", 9.0) == []
    assert consumer.poll("b", 9.9) == []
    assert ids(consumer.poll("a", 10.0)) == [0], "and then to everyone who came meanwhile"


def test_a_rebalance_takes_as_many_polls_as_notifications_say() -> None:
    """Nobody polls but those who are notified, and everything is where it belongs within two rounds."""
    consumer = leases(4)
    consumer.poll("a", 0.0)
    assert consumer.to_notify(0.0) == []
    consumer.poll("b", 0.1)
    assert consumer.to_notify(0.1) == ["a"]
    assert consumer.to_notify(0.1) == [], "once is enough"
    told = ids(consumer.poll("a", 0.2), revoking=True)
    assert consumer.to_notify(0.2) == []
    consumer.poll("a", 0.3, released=told)
    assert consumer.to_notify(0.3) == ["b"]
    assert ids(consumer.poll("b", 0.4)) == told
    assert consumer.to_notify(0.4) == []
    consumer.leave("a", 0.5)
    assert consumer.to_notify(0.5) == ["b"]
    assert ids(consumer.poll("b", 0.6)) == [0, 1, 2, 3]


def test_the_holder_of_a_partition_that_was_sought_is_notified() -> None:
    consumer = leases(2)
    consumer.poll("a", 0.0)
    consumer.to_notify(0.0)
    consumer.renew(1)
    assert consumer.to_notify(0.1) == ["a"]
    assert consumer.to_notify(0.1) == []


def test_members_of_a_dead_one_are_notified_by_the_first_poll_after_its_end() -> None:
    consumer = leases(4)
    for member in ("dead", "b", "c"):
        consumer.poll(member, 0.0)
    for member in ("b", "c"):
        consumer.poll(member, TTL_S - 0.1)
    consumer.to_notify(TTL_S - 0.1)
    consumer.poll("b", TTL_S)
    assert consumer.to_notify(TTL_S) == ["c"]


def test_a_member_that_left_does_not_join_again_by_the_poll_that_still_waits() -> None:
    consumer = leases(2)
    consumer.poll("a", 0.0)
    consumer.leave("a", 0.1)
    assert consumer.poll("a", 0.2, may_join=False) == []
    assert consumer.idle(0.2)
    assert ids(consumer.poll("b", 0.3)) == [0, 1]


@given(
    partitions=st.integers(1, 12),
    joins=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True),
    leaves=st.sets(st.sampled_from("abcdefgh"), max_size=4),
    data=st.data(),
)
def test_notified_members_alone_bring_it_to_even_shares(
    partitions: int, joins: list[str], leaves: set[str], data: st.DataObject
) -> None:
    """However joins, leaves and notified polls interleave. No poll comes from anybody else, and no time passes."""
    consumer = leases(partitions)
    events = [(member, "join") for member in joins] + [(member, "leave") for member in joins if member in leaves]
    held: dict[str, list[HeldLease]] = {}
    notified: list[str] = []

    def poll(member: str) -> None:
        released = ids(held.get(member, []), revoking=True)
        held[member] = consumer.poll(member, 0.0, released)
        if ids(held[member], revoking=True):
            notified.append(member)  # it releases them with a poll of its own

    while events or notified:
        if events and (not notified or data.draw(st.booleans())):
            member, event = events.pop(0)
            if event == "leave":
                consumer.leave(member, 0.0)
                held.pop(member)
            else:
                poll(member)
        else:
            member = notified.pop(data.draw(st.integers(0, len(notified) - 1)))
            if member in held:
                poll(member)
        notified += consumer.to_notify(0.0)
    if held:
        shares = [ids(mine) for mine in held.values()]
        assert sorted(itertools.chain(*shares)) == list(range(partitions))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert not any(lease.revoking for mine in held.values() for lease in mine)


@given(partitions=st.integers(1, 40), members=st.integers(1, 12))
def test_a_join_and_a_leave_move_no_more_than_they_must(partitions: int, members: int) -> None:
    consumer = leases(partitions)
    names = [f"m{number}" for number in range(members)]

    def settle(alive: list[str]) -> dict[int, str]:
        held: dict[str, list[HeldLease]] = {name: [] for name in alive}
        for _ in range(3):
            for name in alive:
                held[name] = consumer.poll(name, 0.0, ids(held[name], revoking=True))
        return consumer.holders(0.0)

    before = settle(names)
    joined = settle([*names, "new"])
    moved = [p for p in before if before[p] != joined[p]]
    assert {joined[p] for p in moved} <= {"new"}
    assert len(moved) == sum(holder == "new" for holder in joined.values()) <= -(-partitions // (members + 1))
    consumer.leave("new", 0.0)
    left = settle(names)
    assert {p for p in joined if left[p] != joined[p]} == set(moved), "only the partitions of the one that left"


def test_a_new_write_manager_moves_nothing() -> None:
    """Members say what they hold while nothing is leased yet, and get just that, in whatever order they come back."""
    for order in itertools.permutations("abc"):
        consumer = leases(7, not_before_s=10.0)
        held = {"a": [6, 2], "b": [0, 1, 5], "c": [3, 4]}
        for member in order:
            assert consumer.poll(member, 9.0, held=held[member]) == []
        got = {member: ids(consumer.poll(member, 10.0, held=held[member])) for member in reversed(order)}
        assert got == {member: sorted(mine) for member, mine in held.items()}
        assert consumer.to_notify(10.0) == []


def test_what_a_dead_member_held_before_goes_to_others() -> None:
    consumer = leases(4, not_before_s=TTL_S)
    consumer.poll("dead", 0.0, held=[0, 1])
    consumer.poll("b", TTL_S - 0.1, held=[2, 3])
    assert ids(consumer.poll("b", TTL_S, held=[2, 3])) == [0, 1, 2, 3]


@dataclass
class Owner:
    member: str
    generation: int
    revoke_requested_s: float | None = None
    given_up: bool = False


class Members(RuleBasedStateMachine):
    """Members poll, release, leave and fall silent. The test keeps its own books of what each of them was told."""

    names = st.sampled_from(["a", "b", "c", "d"])

    @initialize(partitions=st.integers(1, 7))
    def begin(self, partitions: int) -> None:
        self.count = partitions
        self.consumer = leases(partitions)
        self.now_s = 100.0
        self.polled_s: dict[str, float] = {}
        self.owners: dict[int, Owner] = {}
        self.generation = 0

    @rule(seconds=st.sampled_from([0.0, 0.25, 1.0, 2.75, 3.0]))  # exact in binary: sums of them compare exactly
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(member=names, releases=st.booleans())
    def polls(self, member: str, releases: bool) -> None:
        self.poll(member, releases)

    def poll(self, member: str, releases: bool) -> list[HeldLease]:
        mine = {p: owner for p, owner in self.owners.items() if owner.member == member and not owner.given_up}
        released = [p for p, owner in mine.items() if owner.revoke_requested_s is not None] if releases else []
        for partition in released:
            self.owners[partition].given_up = True
        held = self.consumer.poll(member, self.now_s, released)
        for lease in held:
            self.note(member, lease)
        for partition in mine.keys() - set(ids(held)):
            self.owners[partition].given_up = True  # it was told so
        self.polled_s[member] = self.now_s
        return held

    def note(self, member: str, lease: HeldLease) -> None:
        owner = self.owners.get(lease.partition_id)
        if owner is None or lease.generation != owner.generation:
            assert lease.generation > self.generation
            self.generation = lease.generation
            if owner is not None and owner.member != member and not owner.given_up:
                silent = self.now_s - self.polled_s[owner.member] >= TTL_S
                late = owner.revoke_requested_s is not None and self.now_s - owner.revoke_requested_s >= 2 * TTL_S
                assert silent or late, "two members hold the partition"
            owner = self.owners[lease.partition_id] = Owner(member, lease.generation)
        assert (owner.member, owner.generation) == (member, lease.generation)
        if not lease.revoking:
            owner.revoke_requested_s = None
        elif owner.revoke_requested_s is None:
            owner.revoke_requested_s = self.now_s

    @rule(member=names)
    def leave(self, member: str) -> None:
        self.consumer.leave(member, self.now_s)
        for owner in self.owners.values():
            owner.given_up = owner.given_up or owner.member == member

    @rule(alive=st.sets(names, min_size=1), releases=st.booleans())
    def settle(self, alive: set[str], releases: bool) -> None:
        """The living poll every second, the others are dead: soon the living have everything, in even shares."""
        for _ in range(int(TTL_S) + (3 if releases else 2 * int(TTL_S) + 3)):
            held = {member: ids(self.poll(member, releases)) for member in sorted(alive)}
            self.now_s += 1.0
        assert sorted(itertools.chain(*held.values())) == list(range(self.count))
        sizes = [len(mine) for mine in held.values()]
        assert max(sizes) - min(sizes) <= 1
        again = {member: ids(self.poll(member, releases), revoking=False) for member in sorted(alive)}
        assert again == held, "settled leases stay where they are"

    @invariant()
    def holders_are_who_was_told_so(self) -> None:
        if hasattr(self, "consumer"):
            for partition, member in self.consumer.holders(self.now_s).items():
                assert self.owners[partition].member == member


Members.TestCase.settings = settings(max_examples=80, stateful_step_count=30)
TestMembers = Members.TestCase
