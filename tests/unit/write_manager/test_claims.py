"""Claims of one consumer: every message once, in order, through repeats and give-backs."""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from myqueue.protocol.errors import IdempotencyConflict, Overloaded, PastEnd, StaleCommit
from write_manager.claims import (
    REMEMBERED_CLAIMS,
    REMEMBERED_COMMITS,
    Claimed,
    ConsumerState,
    CursorState,
    commits_from_rows,
    delivered_from_rows,
    in_flight_from_rows,
)

LIFETIME_S = 10.0


class Consumer(ConsumerState):
    """Its claims are made now, whenever that is."""

    now_s = 0.0

    def ask(
        self,
        identity: str,
        partition_id: int | None,
        known: Mapping[int, tuple[int, int]],
        leased: Container[int] = (),
    ) -> Claimed | None:
        return super().claim(identity, partition_id, known, leased, now_s=self.now_s, lifetime_s=LIFETIME_S)

    def delivered(self, identity: str) -> bool:
        claimed = self.in_flight.get(identity)
        return claimed is not None and self.deliver(identity, claimed.partition_id, claimed.offset)


def state(*offsets: int, max_in_flight: int = 10_000) -> Consumer:
    return Consumer({p: CursorState(offset) for p, offset in enumerate(offsets)}, 0, max_in_flight=max_in_flight)


def stored(consumer: ConsumerState) -> Consumer:
    """As another process loads it."""
    return Consumer(
        {p: CursorState(c.offset, list(c.given_back), c.skipped) for p, c in consumer.cursors.items()},
        consumer.next_partition,
        in_flight_from_rows(consumer.in_flight_rows(), 0.0),
        delivered_from_rows(consumer.delivered_rows()),
        commits_from_rows(consumer.commit_rows()),
        max_in_flight=consumer.max_in_flight,
    )


def where(claimed: Claimed | None) -> tuple[int, int] | None:
    return None if claimed is None else (claimed.partition_id, claimed.offset)


def test_partitions_take_turns_and_empty_ones_are_skipped() -> None:
    consumer = state(0, 0, 0)
    known = {0: (0, 2), 1: (0, 0), 2: (0, 1)}
    assert [where(consumer.ask(f"r{i}", None, known)) for i in range(4)] == [(0, 0), (2, 0), (0, 1), None]


def test_a_named_partition_moves_only_its_cursor() -> None:
    consumer = state(0, 0)
    assert where(consumer.ask("a", 1, {1: (0, 5)})) == (1, 0)
    assert consumer.next_partition == 0
    assert consumer.cursors[0].offset == 0


def test_a_repeated_request_gets_the_same_message() -> None:
    consumer = state(0)
    first = where(consumer.ask("a", None, {0: (0, 9)}))
    assert where(consumer.ask("b", None, {0: (0, 9)})) == (0, 1)
    assert where(consumer.ask("a", None, {0: (0, 9)})) == first


def test_what_was_given_back_is_read_before_anything_newer() -> None:
    consumer = state(0)
    for identity in "abc":
        consumer.ask(identity, None, {0: (0, 9)})
    assert where(consumer.give_back("b", 1)) == (0, 1)
    assert consumer.cursors[0].offset == 3
    assert where(consumer.ask("d", None, {0: (0, 9)})) == (0, 1)


def test_only_the_last_attempt_may_give_back() -> None:
    consumer = state(0)
    consumer.ask("a", None, {0: (0, 9)})
    consumer.ask("a", None, {0: (0, 9)})
    assert consumer.give_back("a", 1) is None
    assert where(consumer.give_back("a", 2)) == (0, 0)
    assert consumer.give_back("a", 2) is None


def test_what_is_in_flight_is_not_forgotten_however_many_come_after_it() -> None:
    consumer = state(0)
    consumer.ask("first", None, {0: (0, 1000)})
    for number in range(3 * REMEMBERED_CLAIMS):
        consumer.ask(str(number), None, {0: (0, 1000)})
        consumer.delivered(str(number))
    assert where(consumer.ask("first", None, {0: (0, 1000)})) == (0, 0), "a repeated request"
    assert where(consumer.give_back("first", 2)) == (0, 0)


def test_the_memory_of_delivered_claims_is_bounded_and_survives_storage() -> None:
    consumer = state(0)
    for number in range(REMEMBERED_CLAIMS + 10):
        consumer.ask(str(number), None, {0: (0, 1000)})
        consumer.delivered(str(number))
    again = stored(consumer)
    assert where(again.ask("73", None, {0: (0, 1000)})) == (0, 73)
    assert where(again.ask("0", None, {0: (0, 1000)})) == (0, 74)


def test_requests_without_a_key_do_not_push_out_those_with_one() -> None:
    consumer = state(0)
    consumer.ask("key k", None, {0: (0, 1000)})
    consumer.delivered("key k")
    for number in range(2 * REMEMBERED_CLAIMS):
        consumer.ask(f"request {number}", None, {0: (0, 1000)})
        consumer.delivered(f"request {number}")
    assert where(stored(consumer).ask("key k", None, {0: (0, 1000)})) == (0, 0)


def test_a_claim_that_nobody_reports_is_read_again_before_anything_newer() -> None:
    consumer = state(0)
    consumer.ask("a", None, {0: (0, 9)})
    consumer.ask("b", None, {0: (0, 9)})
    assert consumer.delivered("b")
    consumer.now_s = LIFETIME_S - 1
    assert where(consumer.ask("c", None, {0: (0, 9)})) == (0, 2), "a is still in flight"
    consumer.now_s = LIFETIME_S
    assert where(consumer.ask("d", None, {0: (0, 9)})) == (0, 0)
    assert not consumer.delivered("a"), "too late"


def test_a_late_report_says_nothing_about_a_newer_claim_of_the_same_identity() -> None:
    consumer = state(0)
    consumer.ask("key k", None, {0: (0, 9)})
    consumer.expire(LIFETIME_S)
    consumer.now_s = LIFETIME_S
    consumer.ask("other", None, {0: (0, 9)})
    assert where(consumer.ask("key k", None, {0: (0, 9)})) == (0, 1)
    assert not consumer.deliver("key k", 0, 0)
    assert "key k" in consumer.in_flight
    assert consumer.deliver("key k", 0, 1)


def test_a_repeated_request_renews_its_claim() -> None:
    consumer = state(0)
    consumer.ask("a", None, {0: (0, 9)})
    consumer.ask("b", None, {0: (0, 9)})
    consumer.now_s = LIFETIME_S / 2
    consumer.ask("a", None, {0: (0, 9)})
    assert consumer.expire(LIFETIME_S) == 1
    assert list(consumer.in_flight) == ["a"]
    assert consumer.expire(1.5 * LIFETIME_S) == 1


def test_a_loaded_claim_gets_its_whole_lifetime_again() -> None:
    consumer = state(0)
    consumer.ask("a", None, {0: (0, 9)})
    again = stored(consumer)
    assert again.expire(LIFETIME_S - 0.1) == 0
    assert again.expire(LIFETIME_S) == 1
    assert again.cursors[0].given_back == [0]


def test_claims_in_flight_are_bounded() -> None:
    consumer = state(0, max_in_flight=2)
    for identity in "ab":
        consumer.ask(identity, None, {0: (0, 9)})
    with pytest.raises(Overloaded) as refused:
        consumer.ask("c", None, {0: (0, 9)})
    assert refused.value.retriable
    assert refused.value.outcome == "not_written"
    assert where(consumer.ask("a", None, {0: (0, 9)})) == (0, 0), "a repeated request is none more"
    consumer.delivered("a")
    assert where(consumer.ask("c", None, {0: (0, 9)})) == (0, 2)


def test_what_is_no_longer_stored_is_skipped_and_counted() -> None:
    consumer = state(0)
    for identity in "abc":
        consumer.ask(identity, None, {0: (0, 9)})
    consumer.give_back("a", 1)
    assert where(consumer.ask("d", None, {0: (5, 9)})) == (0, 5)
    assert consumer.cursors[0].skipped == 3  # the one given back, and offsets 3 and 4
    assert consumer.cursors[0].given_back == []


def test_leased_partitions_are_left_to_their_members() -> None:
    consumer = state(0, 0)
    known = {0: (0, 9), 1: (0, 9)}
    assert where(consumer.ask("a", None, known, leased={0})) == (1, 0)
    assert consumer.ask("b", 0, known, leased={0}) is None
    assert where(consumer.ask("a", None, known, leased={0, 1})) == (1, 0), "a repeated request gets what it had"


def test_a_commit_leaves_what_was_given_back_to_be_claimed() -> None:
    consumer = state(0)
    for identity in "abcd":
        consumer.ask(identity, None, {0: (0, 9)})
    consumer.give_back("b", 1)
    consumer.commit(None, {0: 8}, {0: 9})
    assert (consumer.cursors[0].offset, consumer.cursors[0].given_back) == (8, [1])
    assert where(consumer.ask("e", None, {0: (0, 9)})) == (0, 1)
    assert consumer.cursors[0].offset == 8


def test_a_commit_moves_all_cursors_or_none() -> None:
    consumer = state(5, 5)
    with pytest.raises(StaleCommit) as stale:
        consumer.commit("a", {0: 7, 1: 4}, {0: 9, 1: 9})
    assert stale.value.details == {"partition_id": 1, "cursor": 5}
    with pytest.raises(PastEnd):
        consumer.commit("a", {0: 7, 1: 10}, {0: 9, 1: 9})
    assert [cursor.offset for cursor in consumer.cursors.values()] == [5, 5]
    consumer.commit(None, {0: 5, 1: 9}, {0: 9, 1: 9})
    assert [cursor.offset for cursor in consumer.cursors.values()] == [5, 9]


def test_a_repeated_commit_is_known_and_survives_storage() -> None:
    consumer = state(0)
    for number in range(REMEMBERED_COMMITS + 5):
        consumer.commit(str(number), {0: number}, {0: 1000})
    again = stored(consumer)
    assert again.committed(str(REMEMBERED_COMMITS), {0: REMEMBERED_COMMITS})
    assert not again.committed("0", {0: 0}), "too long ago"
    with pytest.raises(IdempotencyConflict):
        again.committed(str(REMEMBERED_COMMITS), {0: 0})


def test_a_seek_goes_anywhere_and_no_give_back_undoes_it() -> None:
    consumer = state(0, 0)
    for identity in "abc":
        consumer.ask(identity, 0, {0: (0, 9)})
    consumer.ask("d", 1, {1: (0, 9)})
    consumer.give_back("b", 1)
    consumer.seek({0: 1})
    assert (consumer.cursors[0].offset, consumer.cursors[0].given_back) == (1, [])
    assert consumer.give_back("c", 1) is None
    assert where(consumer.ask("d", None, {})) == (1, 0), "claims on other partitions stay known"


class Consumers(RuleBasedStateMachine):
    """Requests claim, repeat, deliver and give back in any order while time passes and the process starts anew.

    A read manager delivers only within the lifetime that began when it asked, and its report may be lost.
    """

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.consumer = state(0, 0, 0, max_in_flight=8)
        self.known = {0: (0, 0), 1: (0, 0), 2: (0, 0)}
        self.now_s = 0.0
        self.held: dict[str, tuple[Claimed, float]] = {}  # by read managers, until when they may deliver
        self.delivered: Counter[tuple[int, int]] = Counter()
        self.may_come_again: set[tuple[int, int]] = set()
        self.number = 0

    def _hold(self, identity: str, claimed: Claimed) -> None:
        self.held[identity] = (replace(claimed), self.now_s + LIFETIME_S)

    @rule(partition=st.integers(0, 2), count=st.integers(1, 5))
    def append(self, partition: int, count: int) -> None:
        beginning, end = self.known[partition]
        self.known[partition] = (beginning, end + count)

    @rule(seconds=st.floats(0, 1.2 * LIFETIME_S))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.consumer.now_s += seconds

    @rule()
    def start_anew(self) -> None:
        self.consumer = stored(self.consumer)

    @rule(target=claims, partition=st.none() | st.integers(0, 2), kind=st.sampled_from(["key ", "request "]))
    def claim(self, partition: int | None, kind: str) -> str:
        self.number += 1
        identity = f"{kind}{self.number}"
        self.consumer.expire(self.consumer.now_s)
        unread = sum(self.known[p][1] - c.offset + len(c.given_back) for p, c in self.consumer.cursors.items())
        try:
            claimed = self.consumer.ask(identity, partition, self.known)
        except Overloaded:
            assert len(self.consumer.in_flight) == 8
            return identity
        if claimed is not None:
            self._hold(identity, claimed)
        elif partition is None:
            assert unread == 0
        return identity

    @rule(identity=claims)
    def repeat(self, identity: str) -> None:
        known = self.consumer.in_flight.get(identity) or self.consumer._ring(identity).get(identity)
        if known is not None and known.expires_s > self.consumer.now_s:
            before = where(known)
            claimed = self.consumer.ask(identity, None, self.known)
            assert where(claimed) == before
            assert claimed is not None
            self._hold(identity, claimed)
            self.may_come_again.add((claimed.partition_id, claimed.offset))  # to the client that asks again

    @rule(identity=claims, lost=st.booleans())
    def deliver(self, identity: str, lost: bool) -> None:
        claimed, until_s = self.held.get(identity, (None, 0.0))
        if claimed is None or self.now_s >= until_s:
            return
        place = (claimed.partition_id, claimed.offset)
        assert self.delivered[place] == 0 or place in self.may_come_again, "delivered twice without a reason"
        self.delivered[place] += 1
        if lost:
            self.may_come_again.add(place)
        else:
            self.consumer.deliver(identity, *place)
            del self.held[identity]

    @rule(identity=claims, behind=st.integers(0, 1))
    def give_back(self, identity: str, behind: int) -> None:
        claimed, _ = self.held.get(identity, (None, 0.0))
        if claimed is not None and self.consumer.give_back(identity, claimed.attempt - behind) is not None:
            assert behind == 0
            del self.held[identity]

    @invariant()
    def nothing_is_skipped(self) -> None:
        in_flight = {where(claimed) for claimed in self.consumer.in_flight.values()}
        for partition, cursor in self.consumer.cursors.items():
            assert cursor.offset <= self.known[partition][1]
            assert cursor.given_back == sorted(set(cursor.given_back))
            for offset in range(cursor.offset):
                place = (partition, offset)
                assert self.delivered[place] or place in in_flight or offset in cursor.given_back

    @invariant()
    def nothing_is_in_two_places(self) -> None:
        in_flight = [where(claimed) for claimed in self.consumer.in_flight.values()]
        assert len(in_flight) == len(set(in_flight))
        assert not any(offset in self.consumer.cursors[p].given_back for p, offset in filter(None, in_flight))


Consumers.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestConsumers = Consumers.TestCase
