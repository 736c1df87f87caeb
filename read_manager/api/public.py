"""Reads, as the load balancer hands them on."""

import uuid

from flask import g, request

from myqueue.protocol import headers, routes
from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.limits import topic_name_problem
from myqueue.protocol.models import Consume, ConsumerRegistered, Nothing, QueueSize, RegisterConsumer, Size, TopicList
from myqueue.protocol.token import Token
from read_manager.reading import Dequeue, Listing, Sizes
from read_manager.write_manager_calls import WriteManagerCalls
from service.idempotency import idempotency_key
from service.web import Reply, WebApp


def add_public_routes(
    app: WebApp, listing: Listing, dequeue: Dequeue, sizes: Sizes, write_manager: WriteManagerCalls
) -> None:
    def list_topics(_: Nothing) -> Reply:
        return Reply(TopicList(topics=listing.topics(_token())))

    def list_partitions(_: Nothing, topic: str) -> Reply:
        return Reply(listing.partitions(_topic_name(topic), _token()))

    def consume(query: Consume) -> Reply:
        found = dequeue.next_message(query, _identity())
        if found is None:
            return Reply(None, 204)
        message, token = found
        return Reply(message, 200, {} if token is None else {headers.TOKEN: token})

    def size(query: Size) -> Reply:
        return Reply(QueueSize(size=sizes.size(query)))

    def register_consumer(_: RegisterConsumer) -> Reply:
        consumer_id, new = write_manager.register_consumer(request.get_json())
        return Reply(ConsumerRegistered(consumer_id=consumer_id), 201 if new else 200)

    app.route(routes.LIST_TOPICS, Nothing, list_topics)
    app.route(routes.LIST_PARTITIONS, Nothing, list_partitions)
    app.route(routes.CONSUME, Consume, consume)
    app.route(routes.SIZE, Size, size)
    app.route(routes.REGISTER_CONSUMER, RegisterConsumer, register_consumer)


def _topic_name(name: str) -> str:
    problem = topic_name_problem(name)
    if problem is not None:
        raise InvalidRequest(f"topic: {problem}")
    return name


def _token() -> Token | None:
    text = request.headers.get(headers.TOKEN)
    return None if text is None else Token.parse(text)


def _identity() -> str:
    """Who asks again is told the same: the client's key, else the load balancer's id of this request."""
    key = idempotency_key()
    return f"key {key}" if key is not None else f"request {g.request_id or uuid.uuid4().hex}"
