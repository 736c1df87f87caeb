"""Registering producers and consumers, on the event loop: many share a transaction, and none holds a thread."""

import math
import time

from myqueue.protocol import answers, http_headers, routes
from myqueue.protocol.errors import TooManyRequests
from myqueue.protocol.models import OpenProducer, RegisterConsumer, RegisterProducer
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router
from write_manager.directory import Directory
from write_manager.registrations import Registrations
from write_manager.topic_creation_limit import TopicCreationLimit


def add_registration_routes(
    router: Router, registrations: Registrations, directory: Directory, creations: TopicCreationLimit
) -> None:
    def limit_creation(request: HttpRequest, topic: str) -> None:
        """A registration for a topic that does not exist creates it."""
        if topic in directory.topics:
            return
        # The load balancer sets the header itself, whatever a client sends.
        wait_s = creations.wait_s(request.header(http_headers.REAL_IP) or "", time.monotonic())
        if wait_s:
            raise TooManyRequests(
                "this address creates too many topics by registering producers", retry_after_s=math.ceil(wait_s)
            )

    async def register_producer(request: HttpRequest) -> HttpResponse:
        asked = request.parse_json(RegisterProducer)
        limit_creation(request, asked.topic)
        done = await registrations.producer(asked)
        return HttpResponse.json(
            answers.ProducerRegistered(producer_id=done.id), _status(done.new), session_token=done.token
        )

    async def open_producer(request: HttpRequest) -> HttpResponse:
        topic, asked = request.path_values["topic"], request.parse_json(OpenProducer)
        limit_creation(request, topic)
        done = await registrations.open_producer(topic, asked)
        body = answers.ProducerOpened(producer_id=done.id, epoch=done.epoch, topic_id=done.topic_id)
        return HttpResponse.json(body, _status(done.new), session_token=done.token)

    async def register_consumer(request: HttpRequest) -> HttpResponse:
        done = await registrations.consumer(request.parse_json(RegisterConsumer))
        return HttpResponse.json(
            answers.ConsumerRegistered(consumer_id=done.id), _status(done.new), session_token=done.token
        )

    router.add(routes.REGISTER_PRODUCER, register_producer)
    router.add(routes.OPEN_PRODUCER, open_producer)
    router.add(routes.REGISTER_CONSUMER, register_consumer)


def _status(new: bool) -> int:
    return 201 if new else 200
