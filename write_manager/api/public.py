"""Writes, as the load balancer hands them on."""

from myqueue.protocol import answers, http_headers, routes
from myqueue.protocol.models import (
    CreateTopic,
    Nothing,
    Produce,
    PutTopic,
)
from myqueue.protocol.token import Token
from service.idempotency import idempotency_key
from service.web import Reply, WebApp
from write_manager.api.paths import checked_consumer_id
from write_manager.on_loop import OnLoop
from write_manager.produce import Producing
from write_manager.registrations import Registrations
from write_manager.topics import Topics


def add_public_routes(
    app: WebApp,
    topics: Topics,
    registrations: Registrations,
    producing: Producing,
    on_loop: OnLoop,
) -> None:
    def create_topic(request: CreateTopic) -> Reply:
        topic, token = topics.create(request)
        body = answers.TopicCreated(
            message=f"topic {topic.name} created with {len(topic.partitions)} partitions",
            partitions=list(topic.partition_ids),
        )
        return Reply(body, 201, _token(token))

    def put_topic(request: PutTopic, topic: str) -> Reply:
        made, token, new = topics.put(topic, request)
        body = answers.TopicDescription(
            topic=made.name,
            topic_id=str(made.topic_id),
            partitions=len(made.partitions),
            replication=made.replication,
            retention_ms=made.retention_ms,
            retention_bytes=made.retention_bytes,
        )
        return Reply(body, 201 if new else 200, _token(token))

    def delete_topic(_: Nothing, topic: str) -> Reply:
        token = topics.delete(topic)
        return Reply(answers.Done(message=f"topic {topic} deleted"), 200, _token(token))

    def delete_consumer(_: Nothing, consumer_id: str) -> Reply:
        token = registrations.delete_consumer(checked_consumer_id(consumer_id))
        return Reply(answers.Done(message=f"consumer {consumer_id} deleted"), 200, _token(token))

    def produce(request: Produce) -> Reply:
        """Only for what the hot route leaves over, such as a slash at the end of the path."""
        partition_id, offset = on_loop.run(producing.enqueue(request, idempotency_key()))
        return Reply({"status": "success", "partition_id": partition_id, "offset": offset})

    app.route(routes.CREATE_TOPIC, CreateTopic, create_topic)
    app.route(routes.PUT_TOPIC, PutTopic, put_topic)
    app.route(routes.DELETE_TOPIC, Nothing, delete_topic)
    app.route(routes.DELETE_CONSUMER, Nothing, delete_consumer)
    app.route(routes.PRODUCE, Produce, produce)


def _token(token: Token | None) -> dict[str, str]:
    return {} if token is None else {http_headers.TOKEN: str(token)}
