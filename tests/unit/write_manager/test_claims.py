"""Claims of one consumer: every message once, in order, through repeats and give-backs."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from myqueue.protocol.errors import IdempotencyConflict, PastEnd, StaleCommit
from write_manager.claims import (
    REMEMBERED_CLAIMS,
    REMEMBERED_COMMITS,
    Claimed,
    ConsumerState,
    Cursor,
    commits_from_rows,
    recent_from_rows,
)


def state(*offsets: int) -> ConsumerState:
    return ConsumerState({p: Cursor(offset) for p, offset in enumerate(offsets)}, 0, [])


def where(claimed: Claimed | None) -> tuple[int, int] | None:
    return None if claimed is None else (claimed.partition_id, claimed.offset)


def test_partitions_take_turns_and_empty_ones_are_skipped() -> None:
    consumer = state(0, 0, 0)
    known = {0: (0, 2), 1: (0, 0), 2: (0, 1)}
    assert [where(consumer.claim(f"r{i}", None, known)) for i in range(4)] == [(0, 0), (2, 0), (0, 1), None]


def test_a_named_partition_moves_only_its_cursor() -> None:
    consumer = state(0, 0)
    assert where(consumer.claim("a", 1, {1: (0, 5)})) == (1, 0)
    assert consumer.next_partition == 0
    assert consumer.cursors[0].offset == 0


def test_a_repeated_request_gets_the_same_message() -> None:
    consumer = state(0)
    first = where(consumer.claim("a", None, {0: (0, 9)}))
    assert where(consumer.claim("b", None, {0: (0, 9)})) == (0, 1)
    assert where(consumer.claim("a", None, {0: (0, 9)})) == first


def test_what_was_given_back_is_read_before_anything_newer() -> None:
    consumer = state(0)
    for identity in "abc":
        consumer.claim(identity, None, {0: (0, 9)})
    assert where(consumer.give_back("b", 1)) == (0, 1)
    assert consumer.cursors[0].offset == 3
    assert where(consumer.claim("d", None, {0: (0, 9)})) == (0, 1)


def test_only_the_last_attempt_may_give_back() -> None:
    consumer = state(0)
    consumer.claim("a", None, {0: (0, 9)})
    consumer.claim("a", None, {0: (0, 9)})
    assert consumer.give_back("a", 1) is None
    assert where(consumer.give_back("a", 2)) == (0, 0)
    assert consumer.give_back("a", 2) is None


def test_the_memory_of_claims_is_bounded_and_survives_storage() -> None:
    consumer = state(0)
    for number in range(REMEMBERED_CLAIMS + 10):
        consumer.claim(str(number), None, {0: (0, 1000)})
    assert len(consumer.recent) == REMEMBERED_CLAIMS
    again = ConsumerState(consumer.cursors, 0, recent_from_rows(consumer.recent_rows()))
    assert where(again.claim("73", None, {0: (0, 1000)})) == (0, 73)
    assert where(again.claim("0", None, {0: (0, 1000)})) == (0, 74)


def test_what_is_no_longer_stored_is_skipped_and_counted() -> None:
    consumer = state(0)
    for identity in "abc":
        consumer.claim(identity, None, {0: (0, 9)})
    consumer.give_back("a", 1)
    assert where(consumer.claim("d", None, {0: (5, 9)})) == (0, 5)
    assert consumer.cursors[0].skipped == 3  # the one given back, and offsets 3 and 4
    assert consumer.cursors[0].given_back == []


def test_leased_partitions_are_left_to_their_members() -> None:
    consumer = state(0, 0)
    known = {0: (0, 9), 1: (0, 9)}
    assert where(consumer.claim("a", None, known, leased={0})) == (1, 0)
    assert consumer.claim("b", 0, known, leased={0}) is None
    assert where(consumer.claim("a", None, known, leased={0, 1})) == (1, 0), "a repeated request gets what it had"


def test_a_commit_leaves_what_was_given_back_to_be_claimed() -> None:
    consumer = state(0)
    for identity in "abcd":
        consumer.claim(identity, None, {0: (0, 9)})
    consumer.give_back("b", 1)
    consumer.commit(None, {0: 8}, {0: 9})
    assert (consumer.cursors[0].offset, consumer.cursors[0].given_back) == (8, [1])
    assert where(consumer.claim("e", None, {0: (0, 9)})) == (0, 1)
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
    again = ConsumerState(consumer.cursors, 0, [], commits_from_rows(consumer.commit_rows()))
    assert again.committed(str(REMEMBERED_COMMITS), {0: REMEMBERED_COMMITS})
    assert not again.committed("0", {0: 0}), "too long ago"
    with pytest.raises(IdempotencyConflict):
        again.committed(str(REMEMBERED_COMMITS), {0: 0})


def test_a_seek_goes_anywhere_and_no_give_back_undoes_it() -> None:
    consumer = state(0, 0)
    for identity in "abc":
        consumer.claim(identity, 0, {0: (0, 9)})
    consumer.claim("d", 1, {1: (0, 9)})
    consumer.give_back("b", 1)
    consumer.seek({0: 1})
    assert (consumer.cursors[0].offset, consumer.cursors[0].given_back) == (1, [])
    assert consumer.give_back("c", 1) is None
    assert where(consumer.claim("d", None, {})) == (1, 0), "claims on other partitions stay known"


class Consumers(RuleBasedStateMachine):
    """Requests claim, repeat and give back in any order; in the end every message was received exactly once."""

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.consumer = state(0, 0, 0)
        self.known = {0: (0, 0), 1: (0, 0), 2: (0, 0)}
        self.held: dict[str, Claimed] = {}
        self.number = 0

    @rule(partition=st.integers(0, 2), count=st.integers(1, 5))
    def append(self, partition: int, count: int) -> None:
        beginning, end = self.known[partition]
        self.known[partition] = (beginning, end + count)

    @rule(target=claims, partition=st.none() | st.integers(0, 2))
    def claim(self, partition: int | None) -> str:
        self.number += 1
        identity = str(self.number)
        unread = sum(self.known[p][1] - c.offset + len(c.given_back) for p, c in self.consumer.cursors.items())
        claimed = self.consumer.claim(identity, partition, self.known)
        if claimed is not None:
            self.held[identity] = Claimed(claimed.partition_id, claimed.offset, claimed.attempt)
        elif partition is None:
            assert unread == 0
        return identity

    @rule(identity=claims)
    def repeat(self, identity: str) -> None:
        if identity in self.held and identity in self.consumer.recent:
            before = where(self.held[identity])
            claimed = self.consumer.claim(identity, None, self.known)
            assert where(claimed) == before
            assert claimed is not None
            self.held[identity] = Claimed(claimed.partition_id, claimed.offset, claimed.attempt)

    @rule(identity=claims, behind=st.integers(0, 1))
    def give_back(self, identity: str, behind: int) -> None:
        claimed = self.held.get(identity)
        if claimed is not None:
            known = identity in self.consumer.recent
            given = self.consumer.give_back(identity, claimed.attempt - behind) is not None
            assert given == (known and behind == 0)
            if given:
                del self.held[identity]

    @invariant()
    def every_message_is_held_once_or_unread(self) -> None:
        holders = Counter(where(claimed) for claimed in self.held.values())
        for partition, cursor in self.consumer.cursors.items():
            assert cursor.offset <= self.known[partition][1]
            for offset in range(cursor.offset):
                assert holders[partition, offset] + (offset in cursor.given_back) == 1


Consumers.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestConsumers = Consumers.TestCase
