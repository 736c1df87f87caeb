"""Append: batches of clients (data plane) and of managers (internal), validated once for all later readers."""

import asyncio
from concurrent.futures import Executor

import pyarrow as pa

from broker.append_connection import AppendConnection
from broker.batch_dedupe import KeyedBatch, WholeBatch
from broker.data_plane_access import DataPlaneAccess
from broker.leader_requests import Appended
from broker.metrics import Metrics
from broker.partitions import Partitions
from myqueue.protocol import arrow_message, errors, http_headers, internal
from myqueue.protocol import batch as batches
from myqueue.protocol.append_frames import AppendedOffsets
from myqueue.protocol.batch import Header
from myqueue.protocol.dedup_records import decode_dedup_records
from myqueue.protocol.grant import WRITE
from myqueue.protocol.limits import MAX_BATCH_BYTES
from myqueue.protocol.message_calls import (
    AppendAnswer,
    AppendFailure,
)
from myqueue.protocol.routes import APPEND_BATCH
from service.http_messages import HttpRequest, HttpResponse
from service.logs import Log
from service.request_observer import RequestObserver
from service.router import Router

_DECODED_ON_THE_LOOP = 128 << 10  # smaller bodies are decoded in less time than a change of threads takes
_MAX_APPENDS = 1024


class AppendRoutes:
    def __init__(
        self,
        partitions: Partitions,
        access: DataPlaneAccess,
        validators: Executor,
        metrics: Metrics,
        observer: RequestObserver,
        log: Log,
    ) -> None:
        """`validators` are apart from the threads that read files: an append must not queue behind slow reads."""
        self._partitions = partitions
        self._access = access
        self._validators = validators
        self._metrics = metrics
        self._observer = observer
        self._log = log

    def add_to(self, internal_router: Router, data_plane: Router) -> None:
        data_plane.add(APPEND_BATCH, self.append_batch)
        internal_router.add(internal.APPEND, self.append_batches)
        internal_router.add_upgrade(
            internal.APPEND_CONNECTION, lambda _: AppendConnection(self.append_keyed, self._observer, self._log)
        )

    async def append_batch(self, request: HttpRequest) -> HttpResponse:
        """One batch without dedup records."""
        replica = self._access.replica(request, WRITE)
        _check_content_type(request)
        data = request.body
        if len(data) > MAX_BATCH_BYTES:
            raise errors.TooLarge(f"batch is larger than {MAX_BATCH_BYTES} bytes")
        header, body, rest = batches.split(data)
        if len(rest):
            raise errors.InvalidRequest("something follows the batch")
        if (header.topic_id, header.partition) != replica.name:
            raise errors.InvalidRequest("the batch names another partition than the path")
        replica.leader_requests.check_may_lead()
        await self._validated(header, body)
        batch = WholeBatch(header, data)
        appended = await replica.leader_requests.append(header, batch)
        self._count(len(data), header.count, header.count if batch.duplicate else 0, 0)
        return HttpResponse.json(
            {
                "status": "success",
                "base_offset": batch.base_offset,
                "count": header.count,
                "append_time": appended.append_time,
                "end_offset": appended.end_offset,
                "duplicate": batch.duplicate,
            }
        )

    async def append_batches(self, request: HttpRequest) -> HttpResponse:
        """Batches with dedup records for any number of partitions; each is answered as if it had come alone."""
        _check_content_type(request)
        items = _items(request.body)
        answers = await asyncio.gather(*(self._append_one(item, request.request_id) for item in items))
        return HttpResponse.json({"status": "success", "answers": answers})

    async def _append_one(self, data: bytes, request_id: str | None) -> AppendAnswer | AppendFailure:
        try:
            batch, appended = await self._append_keyed(data)
        except errors.MyQueueError as error:
            return {"error": error.to_body(request_id)}
        return {
            "status": "success",
            "results": batch.results(),
            "append_time": appended.append_time,
            "end_offset": appended.end_offset,
        }

    async def append_keyed(self, data: bytes) -> AppendedOffsets:
        """A batch with dedup records, of the append connection."""
        batch, appended = await self._append_keyed(data)
        return AppendedOffsets(appended.end_offset, batch.offsets())

    async def _append_keyed(self, data: bytes) -> tuple[KeyedBatch, Appended]:
        header, body, rest = batches.split(data)
        replica = self._partitions.get(header.topic_id, header.partition)
        records = decode_dedup_records(rest, header.count)
        batch = KeyedBatch(header, data, await self._validated(header, body), records)
        appended = await replica.leader_requests.append(header, batch)
        self._count(len(data), header.count, batch.count_duplicates(), batch.count_refused())
        return batch, appended

    async def _validated(self, header: Header, body: memoryview) -> pa.RecordBatch:
        if header.codec != batches.CODEC_NONE:
            batches.check_codec(header)
            if arrow_message.claims_of(body).decoded_bytes > _DECODED_ON_THE_LOOP:
                return await asyncio.get_running_loop().run_in_executor(
                    self._validators, batches.validate, header, body
                )
        return batches.validate(header, body)

    def _count(self, size_bytes: int, messages: int, duplicates: int, refused: int) -> None:
        metrics = self._metrics
        metrics.appends.inc()
        metrics.bytes.inc(size_bytes)
        metrics.messages.inc(messages - duplicates - refused)
        if duplicates:
            metrics.duplicates.inc(duplicates)


def _check_content_type(request: HttpRequest) -> None:
    if request.content_type != http_headers.BATCH_TYPE:
        raise errors.UnsupportedMediaType(f"Content-Type must be {http_headers.BATCH_TYPE}")


def _items(body: bytes) -> list[bytes]:
    """The batches with their dedup records, each behind its size."""
    view = memoryview(body)
    items: list[bytes] = []
    at = 0
    while at < len(view):
        if len(items) == _MAX_APPENDS:
            raise errors.TooLarge(f"at most {_MAX_APPENDS} batches at a time")
        start = at + internal.APPEND_ITEM.size
        if start > len(view):
            raise errors.InvalidRequest("the last batch is cut off")
        at = start + internal.APPEND_ITEM.unpack_from(view, at)[0]
        if at > len(view):
            raise errors.InvalidRequest("the last batch is cut off")
        items.append(bytes(view[start:at]))
    return items
