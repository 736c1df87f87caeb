"""Answer cache: encoded answers of metadata routes, kept for 100 ms and served on the event loop.

An answer shows the metadata of 100 ms before the request came, or later. A request with a session token bypasses it.
Errors are never kept, so that nothing is said to be missing that a new read would find.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from myqueue.protocol import http_headers
from myqueue.protocol.errors import MyQueueError
from read_manager.metadata_cache import SHOWN_KEPT_S, MetadataCache
from service.http_messages import HttpRequest, HttpResponse, LoopHandler, ThreadHandler

KEPT_S = SHOWN_KEPT_S
KEPT_ANSWERS = 1024
NOT_FOUND = 404

_TOKEN = http_headers.TOKEN.lower()


@dataclass(slots=True)
class _KeptAnswer:
    began_s: float  # of its read: later changes may be missing
    reading: asyncio.Task[HttpResponse]  # concurrent requests share it


class AnswerCache:
    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._kept: OrderedDict[tuple[str, str], _KeptAnswer] = OrderedDict()

    def cached(self, handler: ThreadHandler) -> LoopHandler:
        """`handler` may depend on the path, the query and the session token of its request, on nothing else."""

        async def respond(request: HttpRequest) -> HttpResponse:
            if request.body or request.headers.get(_TOKEN) is not None:
                return await self._read(handler, request)
            key = (request.path, request.query_string)
            now_s = asyncio.get_running_loop().time()
            kept = self._kept.get(key)
            if kept is None or now_s - kept.began_s > KEPT_S or _has_failed(kept.reading):
                kept = self._keep(key, _KeptAnswer(now_s, asyncio.create_task(self._read(handler, request))))
                answer = await asyncio.shield(kept.reading)
            elif kept.reading.done():
                answer = kept.reading.result()
            else:
                try:
                    answer = await asyncio.shield(kept.reading)
                except MyQueueError as error:
                    if error.http_status != NOT_FOUND:
                        raise
                    # It may have been created since that read began.
                    answer = await self._read(handler, request)
            return HttpResponse(answer.status, list(answer.headers), answer.body)

        return respond

    async def _read(self, handler: ThreadHandler, request: HttpRequest) -> HttpResponse:
        return await self._metadata.read(lambda: handler(request))

    def _keep(self, key: tuple[str, str], kept: _KeptAnswer) -> _KeptAnswer:
        self._kept[key] = kept
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_ANSWERS:
            self._kept.popitem(last=False)

        return kept


def _has_failed(reading: asyncio.Task[HttpResponse]) -> bool:
    return reading.done() and (reading.cancelled() or reading.exception() is not None)
