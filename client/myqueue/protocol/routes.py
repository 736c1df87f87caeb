"""The one table of public routes. It feeds servers, library, OpenAPI, Allow headers and the nginx routing test."""

from dataclasses import dataclass
from typing import Literal

Tier = Literal["read", "write"]


@dataclass(frozen=True, slots=True)
class Route:
    name: str
    method: str
    path: str  # {parameter} in braces
    tier: Tier  # which manager answers it behind the load balancer
    summary: str
    request: str | None = None  # names of models in protocol.models
    answer: str | None = None
    success: tuple[int, ...] = (200,)
    failures: tuple[int, ...] = ()
    head: bool = True  # whether HEAD may stand in for GET: not where a GET moves something


CREATE_TOPIC = Route(
    "create_topic", "POST", "/topics", "write", "Create a topic", "CreateTopic", "TopicCreated", (201,), (400, 409, 503)
)
DELETE_TOPIC = Route(
    "delete_topic",
    "DELETE",
    "/v1/topics/{topic}",
    "write",
    "Delete a topic with its messages, producers and consumers",
    "Nothing",
    "Done",
    (200,),
    (404,),
)
LIST_TOPICS = Route(
    "list_topics", "GET", "/topics", "read", "Names of all topics", "Nothing", "TopicList", (200,), (404,)
)
LIST_PARTITIONS = Route(
    "list_partitions",
    "GET",
    "/topics/{topic}/partitions",
    "read",
    "Partitions of a topic with leader, replicas and offsets",
    "Nothing",
    "PartitionList",
    (200,),
    (404,),
)
REGISTER_PRODUCER = Route(
    "register_producer",
    "POST",
    "/producer/register",
    "write",
    "Register a producer; creates the topic if it is missing",
    "RegisterProducer",
    "ProducerRegistered",
    (201, 200),
    (400, 503),
)
REGISTER_CONSUMER = Route(
    "register_consumer",
    "POST",
    "/consumer/register",
    "write",
    "Register a consumer of a topic or of one partition",
    "RegisterConsumer",
    "ConsumerRegistered",
    (201, 200),
    (400, 404, 409, 503),
)
PRODUCE = Route(
    "enqueue",
    "POST",
    "/producer/produce",
    "write",
    "Append one message; safe to retry with an Idempotency-Key",
    "Produce",
    "Produced",
    (200,),
    (400, 404, 409, 413, 503, 507),
)
CONSUME = Route(
    "dequeue",
    "GET",
    "/consumer/consume",
    "read",
    "The next message of a consumer; safe to retry with an Idempotency-Key",
    "Consume",
    "Consumed",
    (200, 204),
    (400, 404, 503),
    head=False,
)
SIZE = Route(
    "size", "GET", "/size", "read", "Messages a consumer has not read yet", "Size", "QueueSize", (200,), (404,)
)
OPENAPI = Route("openapi", "GET", "/openapi.json", "read", "This description as OpenAPI 3.1", "Nothing")
DOCS = Route("docs", "GET", "/docs", "read", "A page to read and try the API", "Nothing")
HEALTHZ = Route("healthz", "GET", "/healthz", "read", "The process answers", "Nothing", "Health")
READYZ = Route(
    "readyz", "GET", "/readyz", "read", "PostgreSQL and the brokers answer too", "Nothing", "Health", (200,), (503,)
)
METRICS = Route("metrics", "GET", "/metrics", "read", "Metrics in Prometheus format", "Nothing")

SIMPLE_API = (
    CREATE_TOPIC,
    LIST_TOPICS,
    LIST_PARTITIONS,
    REGISTER_PRODUCER,
    REGISTER_CONSUMER,
    PRODUCE,
    CONSUME,
    SIZE,
)
OPERATIONS = (OPENAPI, DOCS, HEALTHZ, READYZ, METRICS)
LOG_API = (DELETE_TOPIC,)
ROUTES = (*SIMPLE_API, *LOG_API, *OPERATIONS)


def allowed_methods(path: str) -> tuple[str, ...]:
    return tuple(sorted({route.method for route in ROUTES if route.path == path}))
