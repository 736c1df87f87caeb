"""Routes for messages and cursors, on the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import TypeAdapter

from myqueue.protocol import http_headers, internal, routes
from myqueue.protocol.errors import ConsumerNotFound, MyQueueError, UnsupportedMediaType
from myqueue.protocol.internal import ClaimRequest, DeliveryReport, GiveBack, LeaseRequest
from myqueue.protocol.models import Commit, Produce, Seek
from service.error_encoding import JSON
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router
from write_manager import posting
from write_manager.coalescing import Settled
from write_manager.consume import Consuming
from write_manager.produce import Addressed, Posted, Producing

SMALL_BODY_BYTES = 64 << 10  # a larger body is parsed on a thread: it would keep the loop from other work

_CLAIM = TypeAdapter(ClaimRequest)
_GIVE_BACK = TypeAdapter(GiveBack)
_DELIVERED = TypeAdapter(DeliveryReport)
_LEASE = TypeAdapter(LeaseRequest)


def add_message_routes(router: Router, producing: Producing, consuming: Consuming) -> None:
    async def produce(request: HttpRequest) -> HttpResponse:
        asked = request.parse_json(Produce)
        partition_id, offset = await producing.enqueue(asked, request.idempotency_key())
        body = b'{"status": "success", "partition_id": %d, "offset": %d}' % (partition_id, offset)
        return HttpResponse(200, [("content-type", JSON)], body)

    async def append_messages(request: HttpRequest) -> HttpResponse:
        read = _reader(request)

        def addressed() -> list[Addressed]:
            messages = read(request.body)
            return producing.address(request.path_values["topic"], messages, request.idempotency_key())

        if len(request.body) <= SMALL_BODY_BYTES:
            messages = addressed()
        else:
            messages = await asyncio.to_thread(addressed)
        return _answer(await producing.append(messages))

    async def commit(request: HttpRequest) -> HttpResponse:
        asked = request.parse_json(Commit)
        body, token = await consuming.commit(_consumer_id(request), asked, request.idempotency_key())
        return HttpResponse.json(body, 200, session_token=token)

    async def seek(request: HttpRequest) -> HttpResponse:
        asked = request.parse_json(Seek)
        body, token = await consuming.seek(_consumer_id(request), asked)
        return HttpResponse.json(body, 200, session_token=token)

    router.add(routes.PRODUCE, produce)
    router.add(routes.APPEND_MESSAGES, append_messages)
    router.add(routes.COMMIT, commit)
    router.add(routes.SEEK, seek)


def add_cursor_routes(router: Router, consuming: Consuming) -> None:
    async def claim(request: HttpRequest) -> HttpResponse:
        found, token = await consuming.inc_offset(request.parse_internal(_CLAIM))
        return HttpResponse.json({"status": "success", "claim": found, "token": None if token is None else str(token)})

    async def give_back(request: HttpRequest) -> HttpResponse:
        return HttpResponse.json(
            {"status": "success", "given_back": await consuming.give_back(request.parse_internal(_GIVE_BACK))}
        )

    async def deliver(request: HttpRequest) -> HttpResponse:
        await consuming.deliver(request.parse_internal(_DELIVERED))
        return HttpResponse.json({"status": "success"})

    async def cursors(request: HttpRequest) -> HttpResponse:
        return HttpResponse.json(await consuming.cursors(_consumer_id(request)))

    async def lease(request: HttpRequest) -> HttpResponse:
        return HttpResponse.json(await consuming.lease(_consumer_id(request), request.parse_internal(_LEASE)))

    router.add(internal.CLAIM, claim)
    router.add(internal.GIVE_BACK, give_back)
    router.add(internal.DELIVERED, deliver)
    router.add(internal.CURSORS, cursors)
    router.add(internal.LEASE, lease)


def _consumer_id(request: HttpRequest) -> int:
    return request.path_id("consumer_id", ConsumerNotFound)


def _reader(request: HttpRequest) -> Callable[[bytes], list[Posted]]:
    readers = {JSON: posting.from_json, http_headers.ARROW_TYPE: posting.from_arrow}
    reader = readers.get(request.content_type)
    if reader is None:
        raise UnsupportedMediaType(f"Content-Type must be {JSON} or {http_headers.ARROW_TYPE}")
    request.check_body_only("a body")
    return reader


def _answer(settled: Sequence[Settled]) -> HttpResponse:
    failures = [result for _, result in settled if isinstance(result, MyQueueError)]
    if len(failures) == len(settled):
        raise next((failure for failure in failures if failure.outcome == "unknown"), failures[0])
    offsets = [_line(partition_id, result) for partition_id, result in settled]
    return HttpResponse.json({"status": "success", "offsets": offsets}, 207 if failures else 200)


def _line(partition_id: int, result: int | MyQueueError) -> dict[str, Any]:
    if not isinstance(result, MyQueueError):
        return {"partition": partition_id, "offset": result}
    line = {
        "partition": partition_id,
        "error_code": result.error_code,
        "message": result.message,
        "retriable": result.retriable,
    }
    return line if result.outcome is None else line | {"outcome": result.outcome}
