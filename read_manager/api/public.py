"""Reads that need the catalog alone, as the load balancer hands them on."""

from collections.abc import Callable

from flask import request

from db.listings import LISTINGS, Listing
from myqueue.protocol import http_headers, routes
from myqueue.protocol.answers import ConsumerRegistered, TopicList
from myqueue.protocol.models import Nothing, Query, RegisterConsumer
from myqueue.protocol.token import Token
from read_manager.api import paths
from read_manager.metadata import Metadata
from read_manager.write_manager_client import WriteManagerClient
from service.web import Reply, WebApp


def add_public_routes(app: WebApp, catalog: Metadata, write_manager: WriteManagerClient) -> None:
    def list_topics(_: Nothing) -> Reply:
        return Reply(TopicList(topics=catalog.topics(_token())))

    def describe_topic(_: Nothing, topic: str) -> Reply:
        return Reply(catalog.describe_topic(paths.topic_name(topic), _token()))

    def describe_consumer(_: Nothing, consumer_id: str) -> Reply:
        return Reply(catalog.consumer(paths.consumer_id(consumer_id), _token()))

    def cluster(_: Nothing) -> Reply:
        return Reply(catalog.cluster(_token()))

    def register_consumer(_: RegisterConsumer) -> Reply:
        consumer_id, new = write_manager.register_consumer(request.get_json())
        return Reply(ConsumerRegistered(consumer_id=consumer_id), 201 if new else 200)

    app.route(routes.LIST_TOPICS, Nothing, list_topics)
    app.route(routes.DESCRIBE_TOPIC, Nothing, describe_topic)
    app.route(routes.DESCRIBE_CONSUMER, Nothing, describe_consumer)
    app.route(routes.CLUSTER, Nothing, cluster)
    app.route(routes.REGISTER_CONSUMER, RegisterConsumer, register_consumer)
    for listing in LISTINGS.values():
        if listing.route != routes.CLUSTER:  # that one has more in it than a list
            app.route(listing.route, listing.query, _lister(catalog, listing))


def _lister(catalog: Metadata, listing: Listing) -> Callable[[Query], Reply]:
    return lambda query: Reply(catalog.listed(listing, query, _token()))


def _token() -> Token | None:
    text = request.headers.get(http_headers.TOKEN)
    return None if text is None else Token.parse(text)
