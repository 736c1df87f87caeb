"""What is answered on the event loop: messages, and everything about cursors."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from myqueue.protocol import http_headers, internal, routes
from myqueue.protocol.errors import InvalidRequest, MyQueueError, UnsupportedMediaType
from myqueue.protocol.internal import ClaimRequest, DeliveryReport, GiveBack, LeaseRequest
from myqueue.protocol.models import Commit, Produce, Seek
from myqueue.protocol.token import Token
from service.error_encoding import JSON, describe
from service.hot import Headers, HotAnswer, HotRequest, HotRoutes
from service.idempotency import checked_key
from write_manager import posting
from write_manager.api.paths import checked_consumer_id
from write_manager.coalescing import Settled
from write_manager.consume import Consuming
from write_manager.produce import Addressed, Posted, Producing

SMALL_BODY_BYTES = 64 << 10  # what is larger would keep the loop from other work for too long


_CLAIM = TypeAdapter(ClaimRequest)
_GIVE_BACK = TypeAdapter(GiveBack)
_DELIVERED = TypeAdapter(DeliveryReport)
_LEASE = TypeAdapter(LeaseRequest)

T = TypeVar("T")


def add_public_hot_routes(hot: HotRoutes, producing: Producing, consuming: Consuming) -> None:
    async def produce(request: HotRequest) -> HotAnswer:
        asked = request.parse_json(Produce)
        partition_id, offset = await producing.enqueue(asked, _key(request))
        body = b'{"status": "success", "partition_id": %d, "offset": %d}' % (partition_id, offset)
        return HotAnswer(200, [("content-type", JSON)], body)

    async def append_messages(request: HotRequest) -> HotAnswer:
        read = _reader(request)

        def addressed() -> list[Addressed]:
            messages = read(request.body)
            return producing.address(request.path_values["topic"], messages, _key(request))

        if len(request.body) <= SMALL_BODY_BYTES:
            messages = addressed()
        else:
            messages = await asyncio.to_thread(addressed)
        return _answer(await producing.append(messages))

    async def commit(request: HotRequest) -> HotAnswer:
        asked = request.parse_json(Commit)
        body, token = await consuming.commit(_consumer_id(request), asked, _key(request))
        return HotAnswer.json(body, 200, _token(token))

    async def seek(request: HotRequest) -> HotAnswer:
        asked = request.parse_json(Seek)
        body, token = await consuming.seek(_consumer_id(request), asked)
        return HotAnswer.json(body, 200, _token(token))

    for route, handler in (
        (routes.PRODUCE, produce),
        (routes.APPEND_MESSAGES, append_messages),
        (routes.COMMIT, commit),
        (routes.SEEK, seek),
    ):
        hot.add(route.name, route.method, route.path, handler)


def add_internal_hot_routes(hot: HotRoutes, consuming: Consuming) -> None:
    async def claim(request: HotRequest) -> HotAnswer:
        found, token = await consuming.inc_offset(parsed_body(request, _CLAIM))
        return HotAnswer.json({"status": "success", "claim": found, "token": None if token is None else str(token)})

    async def give_back(request: HotRequest) -> HotAnswer:
        return HotAnswer.json(
            {"status": "success", "given_back": await consuming.give_back(parsed_body(request, _GIVE_BACK))}
        )

    async def deliver(request: HotRequest) -> HotAnswer:
        await consuming.deliver(parsed_body(request, _DELIVERED))
        return HotAnswer.json({"status": "success"})

    async def cursors(request: HotRequest) -> HotAnswer:
        return HotAnswer.json(await consuming.cursors(_consumer_id(request)))

    async def lease(request: HotRequest) -> HotAnswer:
        return HotAnswer.json(await consuming.lease(_consumer_id(request), parsed_body(request, _LEASE)))

    hot.add("inc_offset", "POST", internal.CLAIM, claim, inside=True)
    hot.add("give_back", "POST", internal.GIVE_BACK, give_back, inside=True)
    hot.add("deliver", "POST", internal.DELIVERED, deliver, inside=True)
    hot.add("cursors", "GET", internal.CURSORS, cursors, inside=True)
    hot.add("lease", "POST", internal.LEASE, lease, inside=True)


def parsed_body(request: HotRequest, adapter: TypeAdapter[T]) -> T:
    try:
        return adapter.validate_json(request.body)
    except ValidationError as error:
        raise InvalidRequest(describe(error)) from None


def _consumer_id(request: HotRequest) -> int:
    return checked_consumer_id(request.path_values["consumer_id"])


def _token(token: Token | None) -> Headers:
    return [] if token is None else [(http_headers.TOKEN.lower(), str(token))]


def _key(request: HotRequest) -> str | None:
    return checked_key(request.header(http_headers.IDEMPOTENCY_KEY))


def _reader(request: HotRequest) -> Callable[[bytes], list[Posted]]:
    readers = {JSON: posting.from_json, http_headers.ARROW_TYPE: posting.from_arrow}
    reader = readers.get(request.content_type)
    if reader is None:
        raise UnsupportedMediaType(f"Content-Type must be {JSON} or {http_headers.ARROW_TYPE}")
    if (request.header("content-encoding") or "identity").lower() != "identity":
        raise UnsupportedMediaType("Content-Encoding is not supported; send the body as it is")
    if request.query_string:
        raise InvalidRequest("this call takes a body, no query parameters")
    return reader


def _answer(settled: Sequence[Settled]) -> HotAnswer:
    failures = [result for _, result in settled if isinstance(result, MyQueueError)]
    if len(failures) == len(settled):
        raise next((failure for failure in failures if failure.outcome == "unknown"), failures[0])
    offsets = [_line(partition_id, result) for partition_id, result in settled]
    return HotAnswer.json({"status": "success", "offsets": offsets}, 207 if failures else 200)


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
