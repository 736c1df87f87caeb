"""Epochs and sequences: a log that follows the cluster's rules takes every batch once, whatever happens on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.raft.dedupe import Producer, Repeat, SeenBatch, check_stamp
from broker.raft.entry import Stamp
from myqueue import append_retry
from myqueue.append_retry import NextStep
from myqueue.producer_identity import Sequences
from myqueue.producer_identity import Stamp as OwnStamp
from myqueue.protocol import errors

FATES = ("stored", "not written", "lost", "perhaps")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.sampled_from(FATES)), max_size=60))
def test_the_log_agrees_with_every_stamp(batches: list[tuple[int, int, str]]) -> None:
    """`lost`: written, but the response is lost; `perhaps`: not written, and the response is lost, too."""
    sequences = Sequences(3, epoch=4)
    logs: dict[int, Producer] = {}
    for number, (partition, count, fate) in enumerate(batches):
        stamp = sequences.stamp(partition)
        if stamp is None:
            sequences.renew(3, sequences.epoch + 1)
            stamp = sequences.stamp(partition)
        assert stamp is not None
        _, epoch, sequence = stamp
        known = logs.get(partition)
        assert check_stamp(known, Stamp(3, epoch, sequence, crc=number), count) is None
        if fate in ("stored", "lost"):
            before = known.batches if known is not None and known.epoch == epoch else ()
            logs[partition] = Producer(epoch, (*before, SeenBatch(sequence, count, number, 0))[-8:])
            assert isinstance(check_stamp(logs[partition], Stamp(3, epoch, sequence, crc=number), count), Repeat)
        if fate == "stored":
            sequences.advance(partition, stamp, count)
        elif fate in ("lost", "perhaps"):
            sequences.require_new_epoch(partition, stamp)


def test_sequences_wrap() -> None:
    sequences = Sequences(7, epoch=5)
    assert sequences.stamp(0) == (7, 5, 0)
    sequences.advance(0, OwnStamp(7, 5, 0), (1 << 32) - 2)
    sequences.advance(0, OwnStamp(7, 5, (1 << 32) - 2), 5)
    assert sequences.stamp(0) == (7, 5, 3)
    with pytest.raises(ValueError, match="newer"):
        sequences.renew(7, 5)


def test_an_id_whose_epochs_are_used_up_is_followed_by_another() -> None:
    sequences = Sequences(7, epoch=65_535)
    spent = sequences.stamp(0)
    assert spent is not None
    sequences.require_new_epoch(0, spent)
    assert sequences.stamp(0) is None
    sequences.renew(9, 0)
    assert sequences.stamp(0) == (9, 0, 0)
    sequences.advance(0, spent, 5)  # an answer that came late
    assert sequences.stamp(0) == (9, 0, 0)


@pytest.mark.parametrize(
    ("error", "maybe_written", "following", "disagrees"),
    [
        (errors.NotLeader(details={"leader": 2}), False, NextStep.REROUTE, False),
        (errors.GrantInvalid(), False, NextStep.REROUTE, False),
        (errors.Forbidden(), False, NextStep.FAIL, False),
        (errors.NoLeader(outcome="not_written"), False, NextStep.REROUTE, False),
        (errors.UpstreamFailed(), True, NextStep.REROUTE, False),
        (errors.Overloaded(), False, NextStep.RETRY, False),
        (errors.DiskFull(), False, NextStep.RETRY, False),
        (errors.TooLarge(), False, NextStep.FAIL, False),
        (errors.SequenceGap(), False, NextStep.NEW_EPOCH, True),
        (errors.SequenceGap(), True, NextStep.FAIL, True),
        (errors.IdempotencyConflict(), False, NextStep.FAIL, True),
        (errors.UnknownProducer(), False, NextStep.NEW_EPOCH, True),
        (errors.UnknownProducer(), True, NextStep.FAIL, True),
        (errors.ProducerFenced(), False, NextStep.FENCED, False),
        (errors.InternalError(), True, NextStep.FAIL, False),
    ],
)
def test_the_next_step_after_a_failed_attempt(
    error: errors.MyQueueError, maybe_written: bool, following: NextStep, disagrees: bool
) -> None:
    assert append_retry.next_step(error, maybe_written) is following
    assert append_retry.log_disagrees(error) is disagrees


@pytest.mark.parametrize("maybe_written", [False, True])
@pytest.mark.parametrize("error", [errors.SequenceGap(), errors.UnknownProducer()])
def test_what_was_not_alone_is_repeated_when_it_is(error: errors.MyQueueError, maybe_written: bool) -> None:
    assert append_retry.next_step(error, maybe_written, alone=False) is NextStep.IN_ORDER


def test_hints_are_followed_at_once_but_not_in_circles() -> None:
    hint = errors.NotLeader(details={"leader": 2})
    assert append_retry.retries_at_once(hint, 1)
    assert not append_retry.retries_at_once(hint, 10)
    assert not append_retry.retries_at_once(errors.NotLeader(), 1)


def test_a_partition_with_batches_in_flight_stays_in_its_epoch() -> None:
    sequences = Sequences(7, epoch=0)
    for partition in (0, 1):
        first = sequences.stamp(partition)
        assert first is not None
        sequences.advance(partition, first, 5)
    assert not sequences.release(0, OwnStamp(7, 0, 0), 4)
    assert sequences.release(0, OwnStamp(7, 0, 0), 5)
    sequences.require_new_epoch(0, OwnStamp(7, 0, 0))
    sequences.renew(7, 1)
    assert sequences.stamp(0) == (7, 1, 0)
    assert sequences.stamp(1, continuing=True) == (7, 0, 5)
    assert sequences.stamp(1) == (7, 1, 0)
