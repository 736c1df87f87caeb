"""What publishing a micro-batch consists of, and what follows from an append that was refused. Pure."""

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from myqueue.protocol import errors
from myqueue.protocol.batch import Header
from myqueue.sequences import Stamp
from myqueue.spark.manifest import Staged


class Target(NamedTuple):
    topic: str
    topic_id: UUID
    partition: int


class Step(NamedTuple):
    target: Target
    staged: Staged
    sequence: int  # messages in front of it, in its micro-batch and partition


def plan(entries: Iterable[Staged]) -> list[Step]:
    """The steps in order. The same for everybody who has the manifest: repeating a step is safe."""
    steps = []
    sequences: dict[Target, int] = {}
    for staged in entries:
        target = Target(staged.topic, staged.topic_id, staged.partition)
        sequence = sequences.get(target, 0)
        steps.append(Step(target, staged, sequence))
        sequences[target] = sequence + staged.messages
    return steps


def stamped(header: Header, stamp: Stamp) -> Header:
    return replace(header, producer_id=stamp.producer_id, producer_epoch=stamp.epoch, sequence=stamp.sequence)


class Verdict(Enum):
    WRITTEN = "written"  # by an earlier attempt
    TAKEN = "taken"  # the name belongs to other content
    SUPERSEDED = "superseded"  # a later micro-batch has written, which comes only after this one is complete
    MISSING = "missing"  # what has to be in front of it is not there
    FAILED = "failed"


def verdict_of(error: errors.MyQueueError) -> Verdict:
    """Of a stamped batch whose append failed for good."""
    if isinstance(error, errors.ProducerFenced):
        return Verdict.SUPERSEDED
    if isinstance(error, errors.IdempotencyConflict):
        return Verdict.TAKEN
    if isinstance(error, errors.SequenceGap):
        return Verdict.MISSING
    if isinstance(error, errors.UnknownProducer):
        # A partition that has forgotten where a batch is says "unknown"; one that has never heard of the producer
        # says "not written".
        return Verdict.WRITTEN if error.outcome == "unknown" else Verdict.MISSING
    return Verdict.FAILED
