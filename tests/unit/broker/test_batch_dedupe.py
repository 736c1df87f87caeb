"""A draft keeps the answers in order, whatever part of a batch is new."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.batch_dedupe import MAX_DEDUP_RECORDS, KeyedBatch
from broker.raft.dedupe import Problem, Repeat
from broker.raft.events import DedupeOutcome
from myqueue.protocol import batch as batches
from myqueue.protocol.batch import Message
from myqueue.protocol.dedup_records import DedupRecord, decode_dedup_records, encode_dedup_records
from myqueue.protocol.errors import IdempotencyConflict, InvalidRequest, SequenceGap, TooLarge, UnknownProducer

TOPIC = UUID(int=8)
CONFLICT = {"error_code": IdempotencyConflict.error_code}


def draft_of(values: list[bytes], records: list[DedupRecord], producer_id: int = batches.NO_PRODUCER) -> KeyedBatch:
    data = batches.encode(TOPIC, 0, [Message(value) for value in values])
    header, body, _ = batches.split(data)
    if producer_id != batches.NO_PRODUCER:
        header = batches.Header(TOPIC, 0, header.count, header.body_size, header.body_crc, producer_id=producer_id)
        data = header.pack() + bytes(body)
    return KeyedBatch(header, data + encode_dedup_records(records), batches.validate(header, body), records)


def mark(position: int, key: bytes, crc: int = 1) -> DedupRecord:
    return DedupRecord(position, 0, crc, key * 16)


def values_of(data: bytes) -> tuple[list[bytes], list[int]]:
    header, body, rest = batches.split(data)
    values = [message.value for message in batches.messages_of(batches.validate(header, body))]
    return values, [m.position for m in decode_dedup_records(rest, header.count)]


def test_what_is_new_goes_as_it_came() -> None:
    draft = draft_of([b"a", b"b"], [mark(1, b"k")])
    data, count, records = draft.proposal()
    assert (values_of(data), count, len(records)) == (([b"a", b"b"], [1]), 2, 1)
    draft.committed(10)
    assert not draft.open
    assert draft.results() == [{"offset": 10}, {"offset": 11}]


def test_repeats_and_conflicts_are_answered_and_the_rest_goes_again() -> None:
    draft = draft_of([b"a", b"b", b"c", b"d"], [mark(0, b"k"), mark(1, b"l"), mark(3, b"m")])
    draft.checked(DedupeOutcome(None, (Repeat(4), Problem.CONFLICT, None)))
    data, count, records = draft.proposal()
    assert (values_of(data), count, [m.position for m in records]) == (([b"c", b"d"], [1]), 2, [1])
    draft.committed(20)
    assert draft.results() == [{"offset": 4, "duplicate": True}, CONFLICT, {"offset": 20}, {"offset": 21}]


def test_a_key_twice_in_one_batch_is_written_once() -> None:
    draft = draft_of([b"a", b"a", b"x"], [mark(0, b"k"), mark(1, b"k"), mark(2, b"k", crc=2)])
    assert values_of(draft.proposal()[0])[0] == [b"a"]
    draft.committed(5)
    assert draft.results() == [{"offset": 5}, {"offset": 5, "duplicate": True}, CONFLICT]


def test_when_the_first_abuses_a_key_the_second_is_asked_for() -> None:
    draft = draft_of([b"x", b"a", b"n"], [mark(0, b"k", crc=2), mark(1, b"k")])
    draft.checked(DedupeOutcome(None, (Problem.CONFLICT,)))
    assert values_of(draft.proposal()[0])[0] == [b"a", b"n"]
    draft.checked(DedupeOutcome(None, (Repeat(3),)))
    draft.committed(9)
    assert draft.results() == [CONFLICT, {"offset": 3, "duplicate": True}, {"offset": 9}]


def test_a_producer_sequence_is_judged_as_a_whole() -> None:
    draft = draft_of([b"a", b"b"], [], producer_id=3)
    draft.checked(DedupeOutcome(Repeat(7), ()))
    assert draft.results() == [{"offset": 7, "duplicate": True}, {"offset": 8, "duplicate": True}]
    for problem, error in (
        (Problem.GAP, SequenceGap),
        (Problem.CONFLICT, IdempotencyConflict),
        (Problem.UNKNOWN_PRODUCER, UnknownProducer),
        (Problem.FORGOTTEN, UnknownProducer),
    ):
        with pytest.raises(error) as refused:
            draft_of([b"a"], [], producer_id=3).checked(DedupeOutcome(problem, ()))
        # What is forgotten was written once: who sends it again under another name writes it twice.
        assert refused.value.outcome == ("unknown" if problem is Problem.FORGOTTEN else "not_written")


def test_a_batch_is_named_in_one_way_only() -> None:
    with pytest.raises(InvalidRequest):
        draft_of([b"a"], [mark(0, b"k")], producer_id=3)
    with pytest.raises(TooLarge):
        draft_of([b"a"], [mark(n, b"k") for n in range(MAX_DEDUP_RECORDS + 1)])


@given(st.lists(st.tuples(st.sampled_from(b"ab"), st.integers(1, 2)), min_size=1, max_size=6), st.data())
def test_every_message_is_answered_once(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    draft = draft_of([b"v"] * len(rows), [mark(n, bytes([key]), crc) for n, (key, crc) in enumerate(rows)])
    offset = 100
    while draft.open:
        _, count, records = draft.proposal()
        found = data.draw(
            st.lists(st.sampled_from([None, Repeat(1), Problem.CONFLICT]), min_size=len(records), max_size=len(records))
        )
        if any(found):
            draft.checked(DedupeOutcome(None, tuple(found)))
        else:
            draft.committed(offset)
            offset += count
    results = draft.results()
    assert all(("offset" in result) != ("error_code" in result) for result in results)
    fresh = [result["offset"] for result in results if "offset" in result and not result.get("duplicate")]
    assert sorted(fresh) == list(range(100, offset))
