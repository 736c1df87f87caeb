"""Reads on the event loop: those that are frequent, that wait, or that call brokers."""

import re
import uuid
from functools import partial
from typing import TypeVar

from myqueue.protocol import http_headers, internal, routes
from myqueue.protocol.answers import QueueSize
from myqueue.protocol.errors import ConsumerNotFound, PartitionNotFound
from myqueue.protocol.limits import MAX_WAIT_MS
from myqueue.protocol.models import AskOffsets, Consume, ListMessages, Nothing, Poll, Size
from read_manager.browse import BrowseHandler, MessagePage
from read_manager.consume import ConsumeHandler
from read_manager.delivery_reports import DeliveryReporter
from read_manager.lag import LagHandler
from read_manager.long_poll import ClientConnection
from read_manager.partitions import PartitionsHandler
from read_manager.poll import PollHandler
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router

JSON_TYPE = ("content-type", "application/json")
ARROW_TYPE = ("content-type", http_headers.ARROW_TYPE)
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?")

W = TypeVar("W", Consume, ListMessages, Poll)


def add_async_routes(
    router: Router,
    listing: PartitionsHandler,
    backlog: LagHandler,
    dequeue: ConsumeHandler,
    deliveries: DeliveryReporter,
    messages: BrowseHandler,
    polling: PollHandler,
) -> None:
    async def list_partitions(request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        return HttpResponse.json(await listing.partitions(request.path_topic(), request.session_token()))

    async def routing(request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        return HttpResponse.json(await listing.routing(request.path_topic(), request.session_token()))

    async def partition_offsets(request: HttpRequest) -> HttpResponse:
        query = request.parse_query(AskOffsets)
        found = await listing.offsets(
            request.path_topic(), _partition(request), query.timestamp, request.session_token()
        )
        return HttpResponse.json(found.model_dump(exclude={"offset"} if query.timestamp is None else None))

    async def topic_offsets(request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        return HttpResponse.json(await listing.topic_offsets(request.path_topic(), request.session_token()))

    async def list_messages(request: HttpRequest) -> HttpResponse:
        query = rest_of_wait(request.parse_query(ListMessages), request.header(http_headers.ELAPSED))
        arrow = _wants_arrow(request)
        encode = MessagePage.arrow if arrow else MessagePage.json
        with ClientConnection(request.client_disconnected) as client:
            listed, body = await messages.page(
                request.path_topic(), _partition(request), query, request.session_token(), client, encode
            )
        if not arrow:
            return HttpResponse(200, [JSON_TYPE], body)
        bounds = [
            (http_headers.BEGINNING_OFFSET.lower(), str(listed.beginning_offset)),
            (http_headers.END_OFFSET.lower(), str(listed.end_offset)),
        ]
        return HttpResponse(200, [ARROW_TYPE, *bounds], body) if body else HttpResponse.empty(bounds)

    async def consume(request: HttpRequest) -> HttpResponse:
        query, identity = (
            rest_of_wait(request.parse_query(Consume), request.header(http_headers.ELAPSED)),
            _identity(request),
        )
        with ClientConnection(request.client_disconnected) as client:
            found = await dequeue.next_message(query, identity, request.session_token(), client)
        if found is None:
            return HttpResponse.empty()
        response = HttpResponse.json(found.message, session_token=found.token)
        delivered: internal.Delivered = {
            "consumer_id": query.consumer_id,
            "identity": identity,
            "partition_id": found.message.partition_id,
            "offset": found.message.offset,
        }
        response.on_sent = partial(deliveries.add, delivered, found.lifetime_s)
        return response

    async def size(request: HttpRequest) -> HttpResponse:
        return HttpResponse.json(QueueSize(size=await backlog.size(request.parse_query(Size))))

    async def lag(request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        return HttpResponse.json(await backlog.lag(_consumer(request)))

    async def poll(request: HttpRequest) -> HttpResponse:
        with ClientConnection(request.client_disconnected) as client:
            asked = rest_of_wait(request.parse_json(Poll), request.header(http_headers.ELAPSED))
            return HttpResponse(200, [JSON_TYPE], await polling.poll(_consumer(request), asked, client))

    router.add(routes.LIST_PARTITIONS, list_partitions)
    router.add(routes.ROUTING, routing)
    router.add(routes.PARTITION_OFFSETS, partition_offsets)
    router.add(routes.TOPIC_OFFSETS, topic_offsets)
    router.add(routes.LIST_MESSAGES, list_messages)
    router.add(routes.CONSUME, consume)
    router.add(routes.SIZE, size)
    router.add(routes.LAG, lag)
    router.add(routes.POLL, poll)


def rest_of_wait(asked: W, elapsed: str | None) -> W:
    """A request that another manager failed has waited there already; its client does not know of that."""
    elapsed_s = float(elapsed) if elapsed is not None and _SECONDS.fullmatch(elapsed) else 0.0
    wait_ms = max(0, min(asked.wait_ms, MAX_WAIT_MS) - round(elapsed_s * 1000))
    return asked if wait_ms == asked.wait_ms else asked.model_copy(update={"wait_ms": wait_ms})


def _partition(request: HttpRequest) -> int:
    return request.path_id("partition_id", PartitionNotFound)


def _consumer(request: HttpRequest) -> int:
    return request.path_id("consumer_id", ConsumerNotFound)


def _wants_arrow(request: HttpRequest) -> bool:
    accepted = [part.partition(";")[0].strip().lower() for part in (request.header("accept") or "").split(",")]
    return http_headers.ARROW_TYPE in accepted


def _identity(request: HttpRequest) -> str:
    """A retry has the identity of the first attempt: the client's key, else the load balancer's id of the request."""
    key = request.idempotency_key()
    if key is not None:
        return internal.KEY_IDENTITY + key
    return internal.REQUEST_IDENTITY + (request.request_id or uuid.uuid4().hex)
