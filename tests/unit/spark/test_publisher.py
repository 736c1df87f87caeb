"""Manifest, publish steps and append outcomes: together with the brokers' own rule they store every message once."""

import struct
import zlib
from collections import defaultdict
from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.batch_dedupe import WholeBatch
from broker.raft.dedupe import AppliedDedupe, Repeat, check_stamp
from broker.raft.entry import Kind, LogEntry, Stamp
from broker.raft.events import DedupeOutcome
from myqueue.protocol import errors
from myqueue.protocol.batch import Header, header_for
from myqueue.spark import manifest
from myqueue.spark.manifest import ASKED, DONE, PIECE_BYTES, PIECES, MicroBatch, StagedBatch
from myqueue.spark.publisher import AppendOutcome, Target, append_outcome, publish_steps
from myqueue.spark.staging import CachedBatches, FetchCache, staging_problem

IDS = [UUID(int=1), UUID(int=2)]

staged = st.builds(
    StagedBatch,
    topic=st.just("t"),
    topic_id=st.sampled_from(IDS),
    staging_id=st.sampled_from(IDS),
    partition=st.integers(0, 255),
    messages=st.integers(1, 1 << 20),
    crc=st.integers(0, (1 << 32) - 1),
    staging_partition=st.integers(1, 4),
    offset=st.integers(0, 1 << 62),
    pieces=st.integers(1, 4),
    data=st.just(b""),
)


held = st.builds(
    lambda topic_id, body: StagedBatch.inline("t", topic_id, header_for(topic_id, 1, body, 3), body),
    st.sampled_from(IDS),
    st.binary(max_size=50),
)


@given(st.lists(st.one_of(staged, held), max_size=20))
def test_a_manifest_comes_back_as_it_was(entries: list[StagedBatch]) -> None:
    entries = [entry._replace(topic=f"topic of {entry.topic_id}") for entry in entries]
    pieces = manifest.in_pieces(manifest.encode(entries))
    assert len(pieces) == PIECES
    assert manifest.decode(b"".join(pieces)) == entries


def test_a_manifest_of_the_version_before_can_be_read() -> None:
    """Its micro-batch has begun, and then the library was upgraded."""
    names = b'[["t", "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"]]'
    entry = struct.pack("<HHIIHQH", 0, 7, 100, 0xABCD, 3, 1 << 40, 1)
    before = zlib.compress(struct.pack("<BI", 1, len(names)) + names + entry)
    assert manifest.decode(before) == [StagedBatch("t", IDS[0], IDS[1], 7, 100, 0xABCD, 3, 1 << 40, 1)]
    later = zlib.compress(struct.pack("<BI", 3, len(names)) + names + entry)
    with pytest.raises(ValueError, match="format 3"):
        manifest.decode(later)


def test_a_manifest_has_a_limit() -> None:
    assert [len(piece) for piece in manifest.in_pieces(bytes(PIECE_BYTES + 1))] == [PIECE_BYTES, 1, 0, 0]
    with pytest.raises(errors.TooLarge, match="maxOffsetsPerTrigger"):
        manifest.in_pieces(bytes(PIECES * PIECE_BYTES + 1))


@given(st.lists(staged, max_size=30))
def test_sequences_are_gapless_in_each_partition(entries: list[StagedBatch]) -> None:
    steps = publish_steps(entries)
    assert [step.staged for step in steps] == entries
    expected: defaultdict[Target, int] = defaultdict(int)
    for step in steps:
        assert (step.target.topic_id, step.target.partition) == (step.staged.topic_id, step.staged.partition)
        assert step.sequence == expected[step.target]
        expected[step.target] += step.staged.messages


def test_a_query_has_an_epoch_for_each_micro_batch() -> None:
    names = {(one.producer, one.epoch) for one in (MicroBatch("q", number) for number in range(0, 1 << 18, 999))}
    assert len(names) == len(range(0, 1 << 18, 999))
    assert MicroBatch("q", 65_536).producer != MicroBatch("q", 65_535).producer
    assert MicroBatch("q", 65_536).epoch == 0


class Killed(Exception):
    pass


class Partition:
    """Its log, and the brokers' own rule about what is a repetition."""

    def __init__(self) -> None:
        self.log: list[object] = []
        self._dedupe = AppliedDedupe(1, 4, 8)
        self._end = 0

    def append(self, epoch: int, sequence: int, count: int, crc: int, content: object) -> AppendOutcome | None:
        stamp = Stamp(1, epoch, sequence, crc)
        found = check_stamp(self._dedupe.producers.get(1), stamp, count)
        if found is None:
            self._dedupe.apply(LogEntry(len(self.log), 1, Kind.MESSAGES, self._end, 0, count, stamp))
            self._end += count
            self.log.append(content)
        elif not isinstance(found, Repeat):
            try:
                WholeBatch(Header(IDS[0], 0, count, 0, crc), b"").checked(DedupeOutcome(found, ()))
            except errors.MyQueueError as error:
                return append_outcome(error)
        return None


class Cluster:
    def __init__(self) -> None:
        self.manifests = Partition()
        self.targets: defaultdict[int, Partition] = defaultdict(Partition)
        self.left = 0  # appends until the driver is killed

    def commit(self, number: int, attempt: int, entries: list[StagedBatch]) -> None:
        """The driver's part, as `publisher` does it over the network."""
        outcome = self._append(self.manifests, number, 0, PIECES, attempt, (number, entries))
        decided = entries
        if outcome is not None:
            assert outcome is not AppendOutcome.SUPERSEDED  # nobody repeats one before the last
            if self._append(self.manifests, number, ASKED, 1, -2, "asked") is not AppendOutcome.MISSING:
                return
            decided = next(found for found in self.manifests.log if found[0] == number)[1]  # type: ignore[index]
        for target, one, sequence in publish_steps(decided):
            found = self._append(self.targets[target.partition], number, sequence, one.messages, one.crc, one)
            assert found in (None, AppendOutcome.WRITTEN)
        assert self._append(self.manifests, number, DONE, 1, -1, "done") is None

    def _append(
        self, partition: Partition, epoch: int, sequence: int, count: int, crc: int, content: object
    ) -> AppendOutcome | None:
        if self.left == 0:
            raise Killed
        self.left -= 1
        return partition.append(epoch, sequence, count, crc, content)


small = st.lists(
    st.builds(
        lambda partition, messages, crc: StagedBatch("t", IDS[0], IDS[1], partition, messages, crc, 1, 0, 1),
        st.integers(0, 2),
        st.integers(1, 3),
        st.integers(0, 1 << 20),
    ),
    max_size=25,  # more than a partition remembers of a producer
)


@given(st.lists(st.lists(st.tuples(small, st.integers(0, 40)), min_size=1, max_size=5), min_size=1, max_size=3))
def test_killed_and_repeated_micro_batches_are_stored_once(
    micro_batches: list[list[tuple[list[StagedBatch], int]]],
) -> None:
    """Every attempt of a micro-batch has cut its rows in another way and dies after so many appends; the last goes
    through, and then once more, because Spark lost the result."""
    cluster = Cluster()
    expected: list[StagedBatch] = []
    for number, attempts in enumerate(micro_batches):
        for attempt, (entries, appends) in enumerate(attempts):
            cluster.left = appends
            with suppress(Killed):
                cluster.commit(number, attempt, entries)
        for attempt in (98, 99):
            cluster.left = -1
            cluster.commit(number, attempt, attempts[0][0])
        expected += next(one[1] for one in cluster.manifests.log if one[0] == number)  # type: ignore[index]
    for partition in range(3):
        assert cluster.targets[partition].log == [one for one in expected if one.partition == partition]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errors.ProducerFenced(), AppendOutcome.SUPERSEDED),
        (errors.IdempotencyConflict(), AppendOutcome.TAKEN),
        (errors.SequenceGap(), AppendOutcome.MISSING),
        (errors.UnknownProducer(outcome="unknown"), AppendOutcome.WRITTEN),
        (errors.UnknownProducer(outcome="not_written"), AppendOutcome.MISSING),
        (errors.Unavailable(), AppendOutcome.FAILED),
        (errors.TopicNotFound(), AppendOutcome.FAILED),
    ],
)
def test_append_outcomes(error: errors.MyQueueError, outcome: AppendOutcome) -> None:
    assert append_outcome(error) is outcome


def test_staged_batches_must_still_be_stored() -> None:
    entries = [StagedBatch("t", IDS[0], IDS[1], 0, 1, 0, partition, 10 * partition, 1) for partition in (1, 2)]
    assert staging_problem("s", {IDS[1]}, {0: 99, 1: 10, 2: 20}, entries) is None
    assert isinstance(staging_problem("s", {IDS[0]}, {1: 10, 2: 20}, entries), errors.TopicNotFound)
    assert isinstance(staging_problem("s", set(IDS), {1: 10, 2: 20}, entries), errors.TopicNotFound)
    assert isinstance(staging_problem("s", {IDS[1]}, {1: 10, 2: 21}, entries), errors.OffsetOutOfRange)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5), st.integers(1, 40)), max_size=30), st.integers(1, 100))
def test_the_cache_finds_entries_and_is_bounded(fetched: list[tuple[int, int, int]], most: int) -> None:
    kept = FetchCache[tuple[int, int, int]](most)
    for start, length, size in fetched:
        found = kept.find(start)
        if found is None:
            kept.add(CachedBatches(start, start + length, size, (start, length, size)))
            found = kept.find(start)
        assert found is not None
        assert found[0] <= start < sum(found[:2])
        there = {kept.find(offset) for offset in range(40)} - {None}
        assert found in there
        assert len(there) == 1 or sum(one[2] for one in there if one is not None) <= most


def test_the_cache_evicts_the_least_recently_used() -> None:
    kept = FetchCache[str](20)
    for start, content in ((0, "a"), (10, "b")):
        kept.add(CachedBatches(start, start + 10, 10, content))
    assert kept.find(5) == "a"
    kept.add(CachedBatches(20, 30, 10, "c"))
    assert [kept.find(offset) for offset in (5, 15, 25)] == ["a", None, "c"]
    kept.add(CachedBatches(30, 31, 1000, "d"))
    assert [kept.find(offset) for offset in (5, 25, 30)] == [None, None, "d"]
