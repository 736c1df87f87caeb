"""Writes, as the load balancer hands them on."""

from myqueue.protocol import headers, models, routes
from myqueue.protocol.models import CreateTopic, Nothing, Produce, RegisterConsumer, RegisterProducer
from myqueue.protocol.token import Token
from service.idempotency import idempotency_key
from service.web import Reply, WebApp
from write_manager.produce import Producing
from write_manager.registrations import Registered, Registrations
from write_manager.topics import Topics


def add_public_routes(app: WebApp, topics: Topics, registrations: Registrations, producing: Producing) -> None:
    def create_topic(request: CreateTopic) -> Reply:
        topic, token = topics.create(request)
        body = models.TopicCreated(
            message=f"topic {topic.name} created with {len(topic.partitions)} partitions",
            partitions=list(topic.partition_ids),
        )
        return Reply(body, 201, _token(token))

    def delete_topic(_: Nothing, topic: str) -> Reply:
        token = topics.delete(topic)
        return Reply(models.Done(message=f"topic {topic} deleted"), 200, _token(token))

    def register_producer(request: RegisterProducer) -> Reply:
        done = registrations.producer(request)
        return Reply(models.ProducerRegistered(producer_id=done.id), _status(done), _token(done.token))

    def register_consumer(request: RegisterConsumer) -> Reply:
        done = registrations.consumer(request)
        return Reply(models.ConsumerRegistered(consumer_id=done.id), _status(done), _token(done.token))

    def produce(request: Produce) -> Reply:
        partition_id, offset = producing.enqueue(request, idempotency_key())
        return Reply({"status": "success", "partition_id": partition_id, "offset": offset})

    app.route(routes.CREATE_TOPIC, CreateTopic, create_topic)
    app.route(routes.DELETE_TOPIC, Nothing, delete_topic)
    app.route(routes.REGISTER_PRODUCER, RegisterProducer, register_producer)
    app.route(routes.REGISTER_CONSUMER, RegisterConsumer, register_consumer)
    app.route(routes.PRODUCE, Produce, produce)


def _status(done: Registered) -> int:
    return 201 if done.new else 200


def _token(token: Token | None) -> dict[str, str]:
    return {} if token is None else {headers.TOKEN: str(token)}
