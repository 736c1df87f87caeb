"""Publishing: the driver appends the staged batches of a micro-batch to their topics. Safe to repeat."""

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import closing
from enum import Enum
from functools import partial
from typing import NamedTuple
from uuid import UUID

from myqueue.http_connection import HttpConnection
from myqueue.producer_identity import Stamp
from myqueue.protocol import errors, routes
from myqueue.protocol.batch import Header, decode_body, header_for
from myqueue.protocol.errors import IdempotencyConflict, MyQueueError, OffsetOutOfRange, ProducerFenced, TopicNotFound
from myqueue.simple_api import SimpleApi
from myqueue.spark import manifest
from myqueue.spark.manifest import ASKED, DONE, MicroBatch, StagedBatch
from myqueue.spark.options import WriteOptions
from myqueue.spark.staging import (
    MANIFESTS,
    StagedReader,
    batch_body,
    open_checked_staging,
    open_current,
    stage_all,
    staging_deleted,
    staging_expired,
)
from myqueue.spark.target_topics import deleted_topic
from myqueue.spark.topic_log import TASK_RETRY, SendQueues, TopicLog, stamped
from myqueue.transport import Transport

logger = logging.getLogger("myqueue")

# Bytes of batches. Whoever looks for an older manifest reads through those of others.
_MAX_INLINE_IN_MANIFEST = 256 << 10
_FIRST_LOOK = 64  # messages from the end of the partition; twice as many with every further look

_LOST = "it cannot be completed; start the query with a new checkpointLocation"


class Target(NamedTuple):
    topic: str
    topic_id: UUID
    partition: int


class PublishStep(NamedTuple):
    target: Target
    staged: StagedBatch
    sequence: int  # messages in front of it, in its micro-batch and partition


def publish_steps(entries: Iterable[StagedBatch]) -> list[PublishStep]:
    """The steps in order. They depend on the manifest only, so that repeating a step is safe."""
    steps = []
    sequences: dict[Target, int] = {}
    for staged in entries:
        target = Target(staged.topic, staged.topic_id, staged.partition)
        sequence = sequences.get(target, 0)
        steps.append(PublishStep(target, staged, sequence))
        sequences[target] = sequence + staged.messages
    return steps


class AppendOutcome(Enum):
    WRITTEN = "written"  # by an earlier attempt
    TAKEN = "taken"  # the stamp belongs to another batch
    SUPERSEDED = "superseded"  # a later micro-batch has written, which comes only after this one is complete
    MISSING = "missing"  # the batch before it is not there
    FAILED = "failed"


def append_outcome(error: errors.MyQueueError) -> AppendOutcome:
    """Of a stamped batch whose append failed for good."""
    if isinstance(error, errors.ProducerFenced):
        return AppendOutcome.SUPERSEDED
    if isinstance(error, errors.IdempotencyConflict):
        return AppendOutcome.TAKEN
    if isinstance(error, errors.SequenceGap):
        return AppendOutcome.MISSING
    if isinstance(error, errors.UnknownProducer):
        # "unknown": the batch has left the dedupe window; "not written": the producer is not in it.
        return AppendOutcome.WRITTEN if error.outcome == "unknown" else AppendOutcome.MISSING
    return AppendOutcome.FAILED


class ManifestStore:
    """Decides which attempt of a micro-batch counts: the first one whose manifest is stored under its stamp."""

    def __init__(
        self, transport: Transport, staging: TopicLog, micro_batch: MicroBatch, connection: HttpConnection
    ) -> None:
        self._transport = transport
        self._staging = staging
        self._micro_batch = micro_batch
        self._connection = connection
        try:
            registered = SimpleApi(transport).register_producer(staging.topic, micro_batch.producer, staging.topic_id)
        except TopicNotFound as error:
            raise staging_deleted(micro_batch, staging.topic) from error
        self._producer_id: int = registered["producer_id"]

    def decide(self, entries: list[StagedBatch]) -> list[StagedBatch] | None:
        """The batches to publish: these, or those of an earlier attempt; None if all are published already.

        After this there is no way but to publish them.
        """
        pieces = manifest.in_pieces(manifest.encode(entries))
        outcome = self._append(0, pieces)
        if outcome is None:
            return entries
        if outcome is AppendOutcome.SUPERSEDED:
            # Spark repeats only the last micro-batch that it has begun, so this is not a repetition.
            raise ProducerFenced(
                f"{self._micro_batch} comes after a later one that is published already: another driver goes on with"
                " this query, or its checkpoint was put back or emptied. Nothing of it is written; to begin again"
                " start the query with a new checkpointLocation"
            )
        if self._is_done():
            logger.info("%s is published already", self._micro_batch)
            return None
        logger.info("%s was begun by an earlier attempt, which is completed", self._micro_batch)
        return self._stored()

    def done(self) -> None:
        self._append(DONE, [b"done"])

    def _is_done(self) -> bool:
        return self._append(ASKED, [b"asked"]) is not AppendOutcome.MISSING

    def _append(self, sequence: int, values: list[bytes]) -> AppendOutcome | None:
        """None if it is stored, now or by an earlier attempt. Raises errors that say nothing of the micro-batch."""
        body = batch_body(values)
        header = header_for(self._staging.topic_id, MANIFESTS, body, len(values))
        header = stamped(header, Stamp(self._producer_id, self._micro_batch.epoch, sequence))
        try:
            self._staging.append(self._connection, header, body)
        except TopicNotFound as error:
            raise staging_deleted(self._micro_batch, self._staging.topic) from error
        except MyQueueError as error:
            outcome = append_outcome(error)
            if outcome is AppendOutcome.FAILED:
                raise
            return outcome
        return None

    def _stored(self) -> list[StagedBatch]:
        """The manifest that was stored first. It is near the end: few queries share a staging topic."""
        where = self._transport.call(
            routes.PARTITION_OFFSETS, path={"topic": self._staging.topic, "partition_id": MANIFESTS}
        ).body
        beginning, end, look = where["beginning_offset"], where["end_offset"], _FIRST_LOOK
        while end > beginning:
            start = max(beginning, end - look)
            found = self._among(start, end)
            if found is not None:
                return found
            end, look = start, 2 * look
        raise staging_expired(self._micro_batch, self._staging.topic)

    def _among(self, offset: int, end: int) -> list[StagedBatch] | None:
        while offset < end:
            try:
                batches = self._staging.fetch(self._connection, MANIFESTS, offset)
            except OffsetOutOfRange as error:
                raise staging_expired(self._micro_batch, self._staging.topic) from error
            for header, body in batches:
                if self._is_manifest(header):
                    return manifest.decode(b"".join(decode_body(body).column("value").to_pylist()))
                offset = header.end_offset
        return None

    def _is_manifest(self, header: Header) -> bool:
        name = (header.producer_id, header.producer_epoch, header.sequence)
        return name == (self._producer_id, self._micro_batch.epoch, 0)


def publish(options: WriteOptions, micro_batch: MicroBatch, entries: list[StagedBatch]) -> None:
    """Appends the whole micro-batch to its topics, exactly once. After an error it has to be repeated."""
    with (
        closing(Transport(options.url, retry=TASK_RETRY)) as transport,
        closing(HttpConnection(options.url)) as connection,
    ):
        if sum(len(entry.data) for entry in entries) > _MAX_INLINE_IN_MANIFEST:
            entries = stage_all(transport, options, entries)
        staging = open_checked_staging(transport, options, micro_batch, entries)
        publisher = _Publisher(transport, options, micro_batch, staging)
        publisher.open(entries)
        manifests = ManifestStore(transport, staging, micro_batch, connection)
        decided = manifests.decide(entries)
        if decided is not None:
            publisher.open(decided, _LOST)
            publisher.publish(decided)
            manifests.done()


class _Publisher:
    def __init__(self, transport: Transport, options: WriteOptions, micro_batch: MicroBatch, staging: TopicLog) -> None:
        self._transport = transport
        self._options = options
        self._api = SimpleApi(transport)
        self._micro_batch = micro_batch
        self._staged = StagedReader(staging, micro_batch)
        self._opened: dict[UUID, tuple[TopicLog, int]] = {}  # with this query's producer in it

    def open(self, entries: list[StagedBatch], advice: str | None = None) -> None:
        """Opens the target topics; raises TopicNotFound if one was deleted or recreated.

        The write manager knows whether it was. Read managers learn of that a moment later, in either direction.
        """
        for topic, topic_id in {(entry.topic, entry.topic_id) for entry in entries}:
            if topic_id in self._opened:
                continue
            try:
                registered = self._api.register_producer(topic, self._micro_batch.producer, topic_id)
                log = open_current(partial(TopicLog, self._transport, topic), {topic_id})
            except TopicNotFound as error:
                raise self._deleted(topic, advice) from error
            if log.topic_id != topic_id:
                raise self._deleted(topic, advice)
            self._opened[topic_id] = log, registered["producer_id"]

    def publish(self, entries: list[StagedBatch]) -> None:
        """Appends to partitions in parallel, to each in order. All queues are at about the same place of the manifest,
        so that they share what is fetched of the staging topic."""
        with SendQueues(self._transport.url) as reads, SendQueues(self._transport.url) as appends:
            numbers: dict[tuple[UUID, int], int] = {}
            for step in publish_steps(entries):
                number = numbers.setdefault((step.target.topic_id, step.target.partition), len(numbers))
                # What comes next is read while the leader stores the last one.
                read = reads.submit(number, partial(self._read, step.staged))
                appends.submit(number, partial(self._publish, step, read))
            appends.finish()

    def _read(self, staged: StagedBatch, connection: HttpConnection) -> tuple[Header, bytes]:
        return self._staged.read(connection, staged)

    def _publish(self, step: PublishStep, read: Future[tuple[Header, bytes]], connection: HttpConnection) -> None:
        (topic, topic_id, partition), _, sequence = step
        log, producer_id = self._opened[topic_id]
        header, body = read.result()
        try:
            log.append(connection, stamped(header, Stamp(producer_id, self._micro_batch.epoch, sequence)), body)
        except TopicNotFound as error:
            raise self._deleted(topic, _LOST) from error
        except MyQueueError as error:
            outcome = append_outcome(error)
            if outcome is AppendOutcome.TAKEN:
                raise IdempotencyConflict(
                    f"{self._micro_batch}: partition {partition} of topic {topic!r} holds other messages of this"
                    " micro-batch. Its staging topic was deleted while it was being published, or the option topic was"
                    " changed; start the query with a new checkpointLocation"
                ) from error
            if outcome not in (AppendOutcome.WRITTEN, AppendOutcome.SUPERSEDED):
                raise

    def _deleted(self, topic: str, advice: str | None) -> TopicNotFound:
        return deleted_topic(self._options, self._micro_batch, topic, advice=advice)
