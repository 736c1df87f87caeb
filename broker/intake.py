"""Batches on their way in: read, checked once for everybody who will ever read them, appended, counted."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from broker.appending import MarkedBatch, WholeBatch
from broker.metrics import Metrics
from broker.replica import Replica
from myqueue.protocol import arrow_message, errors
from myqueue.protocol import batch as batches
from myqueue.protocol.batch import Header
from myqueue.protocol.dedup_records import decode_dedup_records
from myqueue.protocol.internal import AppendAnswer
from myqueue.protocol.limits import MAX_BATCH_BYTES

_DECODED_ON_THE_LOOP = 128 << 10  # what is not compressed is checked in less time than a change of threads takes


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a batch is."""

    base_offset: int
    count: int
    append_time: int
    end_offset: int  # of the partition
    duplicate: bool  # it was there before


class Intake:
    def __init__(self, pool: Executor, metrics: Metrics) -> None:
        self._pool = pool
        self._metrics = metrics

    async def append(self, replica: Replica, data: bytes) -> Placed:
        """A batch and nothing else."""
        if len(data) > MAX_BATCH_BYTES:
            raise errors.TooLarge(f"batch is larger than {MAX_BATCH_BYTES} bytes")
        header, body, rest = batches.split(data)
        if len(rest):
            raise errors.InvalidRequest("something follows the batch")
        _check_place(replica, header)
        replica.check_may_lead()
        await self._validated(header, body)
        batch = WholeBatch(header, data)
        appended = await replica.append(header, batch)
        self._count(len(data), header.count, header.count if batch.duplicate else 0, 0)
        return Placed(batch.base_offset, header.count, appended.append_time, appended.end_offset, batch.duplicate)

    async def append_marked(self, find: Callable[[UUID, int], Replica], data: bytes) -> AppendAnswer:
        """A batch and its marks; each message gets an answer of its own."""
        header, body, rest = batches.split(data)
        replica = find(header.topic_id, header.partition)
        marks = decode_dedup_records(rest, header.count)
        batch = MarkedBatch(header, data, await self._validated(header, body), marks)
        appended = await replica.append(header, batch)
        results = batch.results()
        duplicates = sum([1 for result in results if "duplicate" in result])
        refused = sum([1 for result in results if "error_code" in result])
        self._count(len(data), header.count, duplicates, refused)
        return {
            "status": "success",
            "results": results,
            "append_time": appended.append_time,
            "end_offset": appended.end_offset,
        }

    async def _validated(self, header: Header, body: memoryview) -> pa.RecordBatch:
        if header.codec != batches.CODEC_NONE:
            batches.check_codec(header)
            if arrow_message.claims_of(body).decoded_bytes > _DECODED_ON_THE_LOOP:
                return await asyncio.get_running_loop().run_in_executor(self._pool, batches.validate, header, body)
        return batches.validate(header, body)

    def _count(self, size_bytes: int, messages: int, duplicates: int, refused: int) -> None:
        metrics = self._metrics
        metrics.appends.inc()
        metrics.bytes.inc(size_bytes)
        metrics.messages.inc(messages - duplicates - refused)
        if duplicates:
            metrics.duplicates.inc(duplicates)


def _check_place(replica: Replica, header: Header) -> None:
    if (header.topic_id, header.partition) != replica.name:
        raise errors.InvalidRequest("the batch names another partition than the path")
