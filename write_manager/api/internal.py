"""Internal routes for brokers and read managers, on threads."""

from pydantic import TypeAdapter

from db.listings import LISTINGS
from db.primary import Primary
from myqueue.protocol import internal
from myqueue.protocol.errors import RouteNotFound
from myqueue.protocol.internal import BrokerRegistration
from myqueue.protocol.models import RegisterConsumer
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router
from write_manager.directory import Directory
from write_manager.membership import Membership
from write_manager.on_loop import OnLoop
from write_manager.registrations import Registrations
from write_manager.topics import Topics

_BROKER = TypeAdapter(BrokerRegistration)
_CONSUMER = TypeAdapter(RegisterConsumer)


def add_internal_routes(
    router: Router,
    members: Membership,
    directory: Directory,
    topics: Topics,
    registrations: Registrations,
    primary: Primary,
    on_loop: OnLoop,
) -> None:
    def register_broker(request: HttpRequest) -> HttpResponse:
        return HttpResponse.json(members.register(request.parse_internal(_BROKER)))

    def list_topics(_: HttpRequest) -> HttpResponse:
        return HttpResponse.json({"status": "success", "topics": sorted(directory.topics)})

    def topic(request: HttpRequest) -> HttpResponse:
        return HttpResponse.json(topics.record(request.path_values["topic"]))

    def register_consumer(request: HttpRequest) -> HttpResponse:
        done = on_loop.run(registrations.consumer(request.parse_internal(_CONSUMER)))
        return HttpResponse.json({"status": "success", "consumer_id": done.id, "new": done.new})

    def listing(request: HttpRequest) -> HttpResponse:
        found = LISTINGS.get(request.path_values["name"])
        if found is None:
            raise RouteNotFound()
        query = request.parse_query(found.query)
        with primary.reading() as session:
            return HttpResponse.json(found.read(session, query))

    router.add(internal.REGISTER_BROKER, register_broker)
    router.add(internal.CATALOG_TOPICS, list_topics)
    router.add(internal.CATALOG_TOPIC, topic)
    router.add(internal.LISTING, listing)
    router.add(internal.REGISTER_CONSUMER, register_consumer)
