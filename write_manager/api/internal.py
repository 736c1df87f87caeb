"""What brokers and read managers ask of the write manager."""

from typing import TypeVar

from flask import request
from pydantic import TypeAdapter, ValidationError

from db.listings import LISTINGS
from db.primary import Primary
from myqueue.protocol import internal, routes
from myqueue.protocol.errors import InvalidRequest, RouteNotFound
from myqueue.protocol.internal import BrokerRegistration
from myqueue.protocol.models import RegisterConsumer
from service.web import Reply, WebApp, describe, parse_query
from write_manager.directory import Directory
from write_manager.membership import Membership
from write_manager.on_loop import OnLoop
from write_manager.registrations import Registrations
from write_manager.topics import Topics

T = TypeVar("T")

_REGISTRATION = TypeAdapter(BrokerRegistration)


def _body(adapter: TypeAdapter[T]) -> T:
    try:
        return adapter.validate_json(request.get_data())
    except ValidationError as error:
        raise InvalidRequest(describe(error)) from None


def add_internal_routes(
    app: WebApp,
    members: Membership,
    directory: Directory,
    topics: Topics,
    registrations: Registrations,
    primary: Primary,
    on_loop: OnLoop,
) -> None:
    def register_broker() -> Reply:
        return Reply(members.register(_body(_REGISTRATION)))

    def list_topics() -> Reply:
        return Reply({"status": "success", "topics": sorted(directory.topics)})

    def topic(topic: str) -> Reply:
        return Reply(topics.record(topic))

    def register_consumer() -> Reply:
        done = on_loop.run(registrations.consumer(_body(TypeAdapter(RegisterConsumer))))
        return Reply({"status": "success", "consumer_id": done.id, "new": done.new})

    def listing(name: str) -> Reply:
        found = LISTINGS.get(name)
        if found is None:
            raise RouteNotFound()
        query = parse_query(found.query)
        with primary.reading() as session:
            return Reply(found.read(session, query))

    app.internal("register_broker", "POST", internal.REGISTER_BROKER, register_broker)
    app.internal("catalog_topics", "GET", internal.CATALOG_TOPICS, list_topics)
    app.internal("catalog_topic", "GET", internal.CATALOG_TOPIC, topic)
    app.internal("listing", "GET", internal.LISTING, listing)
    app.internal("register_consumer", "POST", "/internal" + routes.REGISTER_CONSUMER.path, register_consumer)
