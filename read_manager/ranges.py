"""Ranges: exactly the messages of some offsets, whole or not at all, so that the answer can be cached.

Below the high watermark nothing changes any more. The URL of a range carries the topic's id, because a topic that is
made anew under the same name begins at offset 0 again; without it a request is redirected to where it has one.
"""

import hashlib
import json
import re
from collections.abc import Callable
from functools import partial

from myqueue.protocol import http_headers, routes
from myqueue.protocol.errors import InvalidRequest, PartitionNotFound, PastEnd, TooLarge, TopicNotFound
from myqueue.protocol.event_models import AskRange, RangeFormat
from myqueue.protocol.internal import TopicRecord
from myqueue.protocol.limits import MAX_FETCH_BYTES, MAX_LISTED_MESSAGES
from myqueue.protocol.models import MAX_OFFSET
from myqueue.protocol.token import Token
from read_manager.batch_slices import BatchSlice, as_arrow, as_json, run_aside, slice_aside
from read_manager.memory_budget import MemoryBudget
from read_manager.metadata_cache import MetadataCache, partition_of
from read_manager.replica_fetch import ReplicaFetcher, fetch_bytes
from service.error_encoding import JSON
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router

# Clients may keep a range for an hour; the load balancer asks again after a minute whether it is still there.
_CACHED = [("cache-control", "public, max-age=3600, immutable"), ("x-accel-expires", "60")]
_NOT_CACHED = ("cache-control", "no-store")
_RANGE = re.compile(r"([0-9]{1,19})-([0-9]{1,19})\Z")
_TAG_BYTES = 16


class RangeHandler:
    def __init__(self, replicas: ReplicaFetcher, topics: MetadataCache, memory: MemoryBudget) -> None:
        self._replicas = replicas
        self._topics = topics
        self._memory = memory

    def add_routes(self, router: Router) -> None:
        router.add(routes.READ_RANGE, self.read_range)

    async def read_range(self, request: HttpRequest) -> HttpResponse:
        query = request.parse_query(AskRange)
        name, partition_id = request.path_topic(), request.path_id("partition_id", PartitionNotFound)
        first, end = _bounds(request.path_values["range"])
        token = request.session_token()
        if query.topic_id is None:
            topic = await self._topics.topic(
                name, token, fresh=True
            )  # a kept record may be of a topic that was deleted
            partition_of(topic, partition_id)
            where = routes.READ_RANGE.path.format(topic=name, partition_id=partition_id, range=f"{first}-{end}")
            parameters = f"topic_id={topic['topic_id']}" + ("" if query.format == "json" else f"&format={query.format}")
            return HttpResponse(307, [("location", f"{where}?{parameters}"), _NOT_CACHED], b"")
        topic = await self._of_id(name, str(query.topic_id), token)
        partition_of(topic, partition_id)
        async with self._memory.reserved(MAX_FETCH_BYTES):
            slices = await self._read(topic, partition_id, first, end)
            encode = partial(_ENCODERS[query.format], topic, partition_id, slices)
            body = await run_aside(sum(each.bytes for each in slices), encode)
        tag = f'"{hashlib.blake2b(body, digest_size=_TAG_BYTES).hexdigest()}"'
        headers = [("etag", tag), *_CACHED]
        if _names(request.header("if-none-match"), tag):
            return HttpResponse(304, headers, b"")
        return HttpResponse(200, [("content-type", _TYPES[query.format]), *headers], body)

    async def _of_id(self, name: str, topic_id: str, token: Token | None) -> TopicRecord:
        topic = await self._topics.topic(name, token, or_kept=True)
        if topic["topic_id"] != topic_id:
            topic = await self._topics.topic(name, token, fresh=True)
        if topic["topic_id"] != topic_id:
            raise TopicNotFound("the topic of this id was deleted; another one has its name now")
        return topic

    async def _read(self, topic: TopicRecord, partition_id: int, first: int, end: int) -> list[BatchSlice]:
        slices: list[BatchSlice] = []
        offset, left_bytes = first, MAX_FETCH_BYTES
        while offset < end:
            size = fetch_bytes(end - offset, left_bytes)
            fetched = await self._replicas.fetch(topic, partition_id, offset, size)
            found, full = await slice_aside(fetched.items, offset, end - offset, left_bytes, need_one=not slices)
            if not found:
                if full or fetched.end_offset >= end:
                    raise TooLarge(f"the range has more than {MAX_FETCH_BYTES} bytes; ask for a smaller one")
                raise PastEnd(
                    f"the range is not complete yet: the partition ends at {fetched.end_offset}",
                    details={"partition_id": partition_id, "end_offset": fetched.end_offset},
                )
            slices += found
            offset = found[-1].next_offset
            left_bytes -= sum(each.bytes for each in found)
        return slices


def _bounds(text: str) -> tuple[int, int]:
    found = _RANGE.match(text)
    if found is None or int(found[2]) > MAX_OFFSET or int(found[1]) >= int(found[2]):
        raise InvalidRequest("range: must be two offsets such as 0-100, the second one after the last that is wanted")
    first, end = int(found[1]), int(found[2])
    if end - first > MAX_LISTED_MESSAGES:
        raise InvalidRequest(f"range: has {end - first} messages, the limit is {MAX_LISTED_MESSAGES}")
    return first, end


def _names(if_none_match: str | None, tag: str) -> bool:
    given = [part.strip().removeprefix("W/") for part in (if_none_match or "").split(",")]
    return tag in given or given == ["*"]


def _document(topic: TopicRecord, partition_id: int, slices: list[BatchSlice]) -> bytes:
    body = {
        "status": "success",
        "topic": topic["name"],
        "topic_id": topic["topic_id"],
        "partition_id": partition_id,
        "messages": as_json(slices),
    }
    return json.dumps(body).encode()


def _lines(_topic: TopicRecord, _partition_id: int, slices: list[BatchSlice]) -> bytes:
    return b"".join([json.dumps(message).encode() + b"\n" for message in as_json(slices)])


def _arrow(_topic: TopicRecord, _partition_id: int, slices: list[BatchSlice]) -> bytes:
    return as_arrow(slices)


_ENCODERS: dict[RangeFormat, Callable[[TopicRecord, int, list[BatchSlice]], bytes]] = {
    "json": _document,
    "ndjson": _lines,
    "arrow": _arrow,
}
_TYPES: dict[RangeFormat, str] = {
    "json": JSON,
    "ndjson": http_headers.NDJSON_TYPE,
    "arrow": http_headers.ARROW_TYPE,
}
