"""Reads on the event loop: those that come often, that wait, or that ask brokers."""

import re
import uuid
from functools import partial
from typing import TypeVar

from myqueue.protocol import http_headers, internal, routes
from myqueue.protocol.answers import QueueSize
from myqueue.protocol.limits import MAX_WAIT_MS
from myqueue.protocol.models import AskOffsets, Consume, ListMessages, Nothing, Poll, Size
from myqueue.protocol.routes import Route
from myqueue.protocol.token import Token
from read_manager.api import paths
from read_manager.browse import BrowseHandler, MessagePage
from read_manager.consume import ConsumeHandler
from read_manager.delivery_reports import DeliveryReporter
from read_manager.lag import LagHandler
from read_manager.long_poll import ClientConnection
from read_manager.partitions import PartitionsHandler
from read_manager.poll import PollHandler
from service.hot import Handler, HotAnswer, HotRequest, HotRoutes
from service.idempotency import checked_key

JSON_TYPE = ("content-type", "application/json")
ARROW_TYPE = ("content-type", http_headers.ARROW_TYPE)
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?")

W = TypeVar("W", Consume, ListMessages, Poll)


def add_hot_routes(
    hot: HotRoutes,
    listing: PartitionsHandler,
    backlog: LagHandler,
    dequeue: ConsumeHandler,
    deliveries: DeliveryReporter,
    messages: BrowseHandler,
    polling: PollHandler,
) -> None:
    async def list_partitions(request: HotRequest) -> HotAnswer:
        request.parse_query(Nothing)
        return HotAnswer.json(await listing.partitions(_topic(request), _token(request)))

    async def routing(request: HotRequest) -> HotAnswer:
        request.parse_query(Nothing)
        return HotAnswer.json(await listing.routing(_topic(request), _token(request)))

    async def partition_offsets(request: HotRequest) -> HotAnswer:
        query = request.parse_query(AskOffsets)
        found = await listing.offsets(_topic(request), _partition(request), query.timestamp, _token(request))
        return HotAnswer.json(found.model_dump(exclude={"offset"} if query.timestamp is None else None))

    async def topic_offsets(request: HotRequest) -> HotAnswer:
        request.parse_query(Nothing)
        return HotAnswer.json(await listing.topic_offsets(_topic(request), _token(request)))

    async def list_messages(request: HotRequest) -> HotAnswer:
        query = rest_of_wait(request.parse_query(ListMessages), request.header(http_headers.ELAPSED))
        arrow = _wants_arrow(request)
        encode = MessagePage.arrow if arrow else MessagePage.json
        with ClientConnection(request.gone) as client:
            listed, body = await messages.page(
                _topic(request), _partition(request), query, _token(request), client, encode
            )
        if not arrow:
            return HotAnswer(200, [JSON_TYPE], body)
        bounds = [
            (http_headers.BEGINNING_OFFSET.lower(), str(listed.beginning_offset)),
            (http_headers.END_OFFSET.lower(), str(listed.end_offset)),
        ]
        return HotAnswer(200, [ARROW_TYPE, *bounds], body) if body else HotAnswer.empty(bounds)

    async def consume(request: HotRequest) -> HotAnswer:
        query, identity = (
            rest_of_wait(request.parse_query(Consume), request.header(http_headers.ELAPSED)),
            _identity(request),
        )
        with ClientConnection(request.gone) as client:
            found = await dequeue.next_message(query, identity, _token(request), client)
        if found is None:
            return HotAnswer.empty()
        answer = HotAnswer.json(
            found.message, 200, [] if found.token is None else [(http_headers.TOKEN.lower(), found.token)]
        )
        delivered: internal.Delivered = {
            "consumer_id": query.consumer_id,
            "identity": identity,
            "partition_id": found.message.partition_id,
            "offset": found.message.offset,
        }
        answer.on_sent = partial(deliveries.add, delivered, found.lifetime_s)
        return answer

    async def size(request: HotRequest) -> HotAnswer:
        return HotAnswer.json(QueueSize(size=await backlog.size(request.parse_query(Size))))

    async def lag(request: HotRequest) -> HotAnswer:
        request.parse_query(Nothing)
        return HotAnswer.json(await backlog.lag(_consumer(request)))

    async def poll(request: HotRequest) -> HotAnswer:
        with ClientConnection(request.gone) as client:
            asked = rest_of_wait(request.parse_json(Poll), request.header(http_headers.ELAPSED))
            return HotAnswer(200, [JSON_TYPE], await polling.poll(_consumer(request), asked, client))

    handlers: dict[Route, Handler] = {
        routes.LIST_PARTITIONS: list_partitions,
        routes.ROUTING: routing,
        routes.PARTITION_OFFSETS: partition_offsets,
        routes.TOPIC_OFFSETS: topic_offsets,
        routes.LIST_MESSAGES: list_messages,
        routes.CONSUME: consume,
        routes.SIZE: size,
        routes.LAG: lag,
        routes.POLL: poll,
    }
    for route, handler in handlers.items():
        hot.add(route.name, route.method, route.path, handler, head=route.head and route.method == "GET")


def rest_of_wait(asked: W, elapsed: str | None) -> W:
    """A request that another manager failed has waited there already; its client does not know of that."""
    elapsed_s = float(elapsed) if elapsed is not None and _SECONDS.fullmatch(elapsed) else 0.0
    wait_ms = max(0, min(asked.wait_ms, MAX_WAIT_MS) - round(elapsed_s * 1000))
    return asked if wait_ms == asked.wait_ms else asked.model_copy(update={"wait_ms": wait_ms})


def _topic(request: HotRequest) -> str:
    return paths.topic_name(request.path_values["topic"])


def _partition(request: HotRequest) -> int:
    return paths.partition_id(request.path_values["partition_id"])


def _consumer(request: HotRequest) -> int:
    return paths.consumer_id(request.path_values["consumer_id"])


def _token(request: HotRequest) -> Token | None:
    text = request.header(http_headers.TOKEN)
    return None if text is None else Token.parse(text)


def _wants_arrow(request: HotRequest) -> bool:
    accepted = [part.partition(";")[0].strip().lower() for part in (request.header("accept") or "").split(",")]
    return http_headers.ARROW_TYPE in accepted


def _identity(request: HotRequest) -> str:
    """Who asks again is told the same: the client's key, else the load balancer's id of this request."""
    key = checked_key(request.header(http_headers.IDEMPOTENCY_KEY))
    if key is not None:
        return internal.KEY_IDENTITY + key
    return internal.REQUEST_IDENTITY + (request.request_id or uuid.uuid4().hex)
