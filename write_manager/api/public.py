"""Topics and consumers: public writes on threads."""

from myqueue.protocol import answers, routes
from myqueue.protocol.errors import ConsumerNotFound
from myqueue.protocol.models import CreateTopic, Nothing, PutTopic
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router
from write_manager.registrations import Registrations
from write_manager.topics import Topics


def add_public_routes(router: Router, topics: Topics, registrations: Registrations) -> None:
    def create_topic(request: HttpRequest) -> HttpResponse:
        topic, token = topics.create(request.parse_json(CreateTopic))
        body = answers.TopicCreated(
            message=f"topic {topic.name} created with {len(topic.partitions)} partitions",
            partitions=list(topic.partition_ids),
        )
        return HttpResponse.json(body, 201, session_token=token)

    def put_topic(request: HttpRequest) -> HttpResponse:
        made, token, new = topics.put(request.path_values["topic"], request.parse_json(PutTopic))
        body = answers.TopicDescription(
            topic=made.name,
            topic_id=str(made.topic_id),
            partitions=len(made.partitions),
            replication=made.replication,
            retention_ms=made.retention_ms,
            retention_bytes=made.retention_bytes,
        )
        return HttpResponse.json(body, 201 if new else 200, session_token=token)

    def delete_topic(request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        topic = request.path_values["topic"]
        token = topics.delete(topic)
        return HttpResponse.json(answers.Done(message=f"topic {topic} deleted"), session_token=token)

    def delete_consumer(request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        token = registrations.delete_consumer(request.path_id("consumer_id", ConsumerNotFound))
        body = answers.Done(message=f"consumer {request.path_values['consumer_id']} deleted")
        return HttpResponse.json(body, session_token=token)

    router.add(routes.CREATE_TOPIC, create_topic)
    router.add(routes.PUT_TOPIC, put_topic)
    router.add(routes.DELETE_TOPIC, delete_topic)
    router.add(routes.DELETE_CONSUMER, delete_consumer)
