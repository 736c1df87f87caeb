"""Which attempt of a micro-batch counts: the one whose manifest is stored first, under the micro-batch's own name."""

import logging

from myqueue.protocol import routes
from myqueue.protocol.batch import Header, decode_body, header_for
from myqueue.protocol.errors import MyQueueError, OffsetOutOfRange, ProducerFenced, TopicNotFound
from myqueue.sequences import Stamp
from myqueue.simple_api import SimpleApi
from myqueue.spark import manifest
from myqueue.spark.manifest import ASKED, DONE, MicroBatch, Staged
from myqueue.spark.publishing import Verdict, stamped, verdict_of
from myqueue.spark.staged_reader import deleted, expired
from myqueue.spark.staging import MANIFESTS, envelope
from myqueue.spark.topic_log import TopicLog
from myqueue.transport import Transport
from myqueue.wire import Wire

logger = logging.getLogger("myqueue")

_FIRST_LOOK = 64  # messages from the end of the partition; twice as many with every further look


class Decisions:
    """Of one micro-batch."""

    def __init__(self, transport: Transport, staging: TopicLog, micro_batch: MicroBatch, wire: Wire) -> None:
        self._transport = transport
        self._staging = staging
        self._micro_batch = micro_batch
        self._wire = wire
        registered = SimpleApi(transport).register_producer(staging.topic, micro_batch.producer)
        self._producer_id: int = registered["producer_id"]

    def decide(self, entries: list[Staged]) -> list[Staged] | None:
        """What to publish: these, or what an earlier attempt has decided; None if all of it is published. After this
        it is to be published: what is named must be there."""
        pieces = manifest.in_pieces(manifest.encode(entries))
        verdict = self._append(0, pieces)
        if verdict is None:
            return entries
        if verdict is Verdict.SUPERSEDED:
            # Spark repeats only the last one it has begun, so this is no repetition.
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
        return self._append(ASKED, [b"asked"]) is not Verdict.MISSING

    def _append(self, sequence: int, values: list[bytes]) -> Verdict | None:
        """None: it is stored, now or by an earlier attempt. Raises what says nothing of the micro-batch."""
        body = envelope(values)
        header = header_for(self._staging.topic_id, MANIFESTS, body, len(values))
        header = stamped(header, Stamp(self._producer_id, self._micro_batch.epoch, sequence))
        try:
            self._staging.append(self._wire, header, body)
        except TopicNotFound as error:
            raise deleted(self._micro_batch, self._staging.topic) from error
        except MyQueueError as error:
            verdict = verdict_of(error)
            if verdict is Verdict.FAILED:
                raise
            return verdict
        return None

    def _stored(self) -> list[Staged]:
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
        raise expired(self._micro_batch, self._staging.topic)

    def _among(self, offset: int, end: int) -> list[Staged] | None:
        while offset < end:
            try:
                batches = self._staging.fetch(self._wire, MANIFESTS, offset)
            except OffsetOutOfRange as error:
                raise expired(self._micro_batch, self._staging.topic) from error
            for header, body in batches:
                if self._is_manifest(header):
                    return manifest.decode(b"".join(decode_body(body).column("value").to_pylist()))
                offset = header.end_offset
        return None

    def _is_manifest(self, header: Header) -> bool:
        name = (header.producer_id, header.producer_epoch, header.sequence)
        return name == (self._producer_id, self._micro_batch.epoch, 0)
