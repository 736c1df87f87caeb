"""What was staged, read back by the driver."""

import threading

import pyarrow as pa

from myqueue.protocol.batch import HEADER_BYTES, Header, check_body, decode_body, decode_header
from myqueue.protocol.errors import MyQueueError, OffsetOutOfRange, TopicNotFound
from myqueue.spark.keeping import Kept, Part
from myqueue.spark.manifest import MicroBatch, Staged
from myqueue.spark.topic_log import TopicLog
from myqueue.wire import Wire

KEPT_BYTES = 32 << 20

Values = tuple[Header, pa.Array]  # of a batch of the staging topic


class StagedReader:
    """May be shared by threads: what one has fetched is there for the others."""

    def __init__(self, log: TopicLog, micro_batch: MicroBatch) -> None:
        self._log = log
        self._micro_batch = micro_batch
        self._kept = [Kept[list[Values]](KEPT_BYTES // log.partitions) for _ in range(log.partitions)]
        self._fetching = [threading.Lock() for _ in range(log.partitions)]

    def read(self, wire: Wire, staged: Staged) -> tuple[Header, bytes]:
        """The batch as its task made it."""
        data = bytearray()
        offset, end = staged.offset, staged.offset + staged.pieces
        while offset < end:
            batch, values = self._batch(wire, staged.staging_partition, offset)
            pieces = values.slice(offset - batch.base_offset, end - offset)
            for piece in pieces:
                data += piece.as_buffer()
            offset += len(pieces)
        header, body = decode_header(memoryview(data)), bytes(data[HEADER_BYTES:])
        check_body(header, body)
        if (header.body_crc, header.count) != (staged.crc, staged.messages):
            raise MyQueueError(f"{self._micro_batch}: what is staged is not what its manifest names")
        return header, body

    def _batch(self, wire: Wire, partition: int, offset: int) -> Values:
        """The batch of the staging topic that holds this offset."""
        kept = self._kept[partition]
        with self._fetching[partition]:  # others that need the same wait for it
            batches = kept.find(offset)
            if batches is None:
                batches = self._fetched(wire, partition, offset)
                size = sum(header.body_size for header, _ in batches)
                kept.add(Part(batches[0][0].base_offset, batches[-1][0].end_offset, size, batches))
        return next(batch for batch in batches if offset < batch[0].end_offset)

    def _fetched(self, wire: Wire, partition: int, offset: int) -> list[Values]:
        try:
            fetched = self._log.fetch(wire, partition, offset)
        except OffsetOutOfRange as error:
            raise expired(self._micro_batch, self._log.topic) from error
        except TopicNotFound as error:
            raise deleted(self._micro_batch, self._log.topic) from error
        return [(header, decode_body(body).column("value")) for header, body in fetched]


def expired(micro_batch: MicroBatch, staging_topic: str) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"{micro_batch} was begun to be published, but what it had staged in {staging_topic!r} is gone by retention"
        " (stagingRetentionMs): it cannot be completed. Messages of this micro-batch may be missing; start the query"
        " with a new checkpointLocation to go on"
    )


def deleted(micro_batch: MicroBatch, staging_topic: str) -> TopicNotFound:
    return TopicNotFound(
        f"{micro_batch}: the staging topic {staging_topic!r} was deleted while it was being published; start the query"
        " again"
    )
