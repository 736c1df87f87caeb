"""Reads that need the catalog alone, on threads."""

import json

from db.listings import LISTINGS, Listing
from myqueue.protocol import routes
from myqueue.protocol.answers import ConsumerRegistered, TopicList
from myqueue.protocol.errors import ConsumerNotFound
from myqueue.protocol.models import Nothing, RegisterConsumer
from read_manager.metadata import Metadata
from read_manager.write_manager_client import WriteManagerClient
from service.http_messages import HttpRequest, HttpResponse, ThreadHandler
from service.router import Router


def add_public_routes(router: Router, catalog: Metadata, write_manager: WriteManagerClient) -> None:
    def list_topics(request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        return HttpResponse.json(TopicList(topics=catalog.topics(request.session_token())))

    def describe_topic(request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        return HttpResponse.json(catalog.describe_topic(request.path_topic(), request.session_token()))

    def describe_consumer(request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        consumer_id = request.path_id("consumer_id", ConsumerNotFound)
        return HttpResponse.json(catalog.consumer(consumer_id, request.session_token()))

    def cluster(request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        return HttpResponse.json(catalog.cluster(request.session_token()))

    def register_consumer(request: HttpRequest) -> HttpResponse:
        request.parse_json(RegisterConsumer)
        consumer_id, new = write_manager.register_consumer(json.loads(request.body))
        return HttpResponse.json(ConsumerRegistered(consumer_id=consumer_id), 201 if new else 200)

    router.add(routes.LIST_TOPICS, list_topics)
    router.add(routes.DESCRIBE_TOPIC, describe_topic)
    router.add(routes.DESCRIBE_CONSUMER, describe_consumer)
    router.add(routes.CLUSTER, cluster)
    router.add(routes.REGISTER_CONSUMER, register_consumer)
    for listing in LISTINGS.values():
        if listing.route != routes.CLUSTER:  # that one has more in it than a list
            router.add(listing.route, _lister(catalog, listing))


def _lister(catalog: Metadata, listing: Listing) -> ThreadHandler:
    def list_rows(request: HttpRequest) -> HttpResponse:
        query = request.parse_query(listing.query)
        return HttpResponse.json(catalog.listed(listing, query, request.session_token()))

    return list_rows
