"""The one table of public routes. It feeds servers, library, OpenAPI, Allow headers and the nginx routing test."""

from myqueue.protocol.route import Route as Route
from myqueue.protocol.route import Tier as Tier
from myqueue.protocol.stats_routes import CONSUMER_STATS as CONSUMER_STATS
from myqueue.protocol.stats_routes import CONSUMER_TOTALS as CONSUMER_TOTALS
from myqueue.protocol.stats_routes import LIST_RUNS as LIST_RUNS
from myqueue.protocol.stats_routes import PARTITION_STATS as PARTITION_STATS
from myqueue.protocol.stats_routes import STATISTICS as STATISTICS
from myqueue.protocol.stats_routes import STATS_PLOT as STATS_PLOT
from myqueue.protocol.stats_routes import TOPIC_STATS as TOPIC_STATS
from myqueue.protocol.stats_routes import TOPIC_TOTALS as TOPIC_TOTALS

CREATE_TOPIC = Route(
    "create_topic", "POST", "/topics", "write", "Create a topic", "CreateTopic", "TopicCreated", (201,), (400, 409, 503)
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
    keyed=True,
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
    keyed=True,
)
SIZE = Route(
    "size", "GET", "/size", "read", "Messages a consumer has not read yet", "Size", "QueueSize", (200,), (404,)
)
PUT_TOPIC = Route(
    "put_topic",
    "PUT",
    "/v1/topics/{topic}",
    "write",
    "Create a topic, or find that it is there with these settings",
    "PutTopic",
    "TopicDescription",
    (201, 200),
    (400, 409, 503),
)
DESCRIBE_TOPIC = Route(
    "describe_topic",
    "GET",
    "/v1/topics/{topic}",
    "read",
    "Settings of a topic",
    "Nothing",
    "TopicDescription",
    (200,),
    (404,),
)
ALTER_TOPIC = Route(
    "alter_topic",
    "PATCH",
    "/v1/topics/{topic}",
    "write",
    "Change the retention of a topic",
    "AlterTopic",
    "TopicDescription",
    (200,),
    (400, 404, 503),
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
OPEN_PRODUCER = Route(
    "open_producer",
    "POST",
    "/v1/topics/{topic}/producers",
    "write",
    "A producer's id and a new epoch for its sequences; creates the topic if it is missing",
    "OpenProducer",
    "ProducerOpened",
    (201, 200),
    (400, 409, 503),
)
APPEND_MESSAGES = Route(
    "append_messages",
    "POST",
    "/v1/topics/{topic}/messages",
    "write",
    "Append messages, as JSON or as an Arrow stream; safe to retry with an Idempotency-Key",
    "AppendMessages",
    "MessagesAppended",
    (200, 207),
    (400, 404, 409, 413, 503, 507),
    keyed=True,
)
LIST_MESSAGES = Route(
    "list_messages",
    "GET",
    "/v1/topics/{topic}/partitions/{partition_id}/messages",
    "read",
    "Messages of a partition from an offset or a time on, as JSON or as an Arrow stream",
    "ListMessages",
    "MessageList",
    (200, 204),
    (400, 404, 410, 503),
)
READ_RANGE = Route(
    "read_range",
    "GET",
    "/v1/topics/{topic}/partitions/{partition_id}/ranges/{range}",
    "read",
    "Exactly the messages of some offsets; can be cached",
    "AskRange",
    "MessageRange",
    (200, 304, 307),
    (400, 404, 410, 413, 422, 503),
)
TOPIC_EVENTS = Route(
    "topic_events",
    "GET",
    "/v1/topics/{topic}/events",
    "read",
    "Messages of a topic as they come: Server-Sent Events",
    "TopicEvents",
    None,
    (200,),
    (400, 404, 410, 422, 503),
    head=False,
)
PARTITION_OFFSETS = Route(
    "partition_offsets",
    "GET",
    "/v1/topics/{topic}/partitions/{partition_id}/offsets",
    "read",
    "Where a partition begins and ends, and which offset belongs to a time",
    "AskOffsets",
    "PartitionOffsets",
    (200,),
    (404, 503),
)
TOPIC_OFFSETS = Route(
    "topic_offsets",
    "GET",
    "/v1/topics/{topic}/offsets",
    "read",
    "Where all partitions of a topic begin and end, as their leaders say",
    "Nothing",
    "TopicOffsets",
    (200,),
    (404, 503),
)
DESCRIBE_CONSUMER = Route(
    "describe_consumer",
    "GET",
    "/v1/consumers/{consumer_id}",
    "read",
    "Who a consumer is",
    "Nothing",
    "ConsumerDescription",
    (200,),
    (404,),
)
DELETE_CONSUMER = Route(
    "delete_consumer",
    "DELETE",
    "/v1/consumers/{consumer_id}",
    "write",
    "Delete a consumer with its cursors",
    "Nothing",
    "Done",
    (200,),
    (404, 503),
)
POLL = Route(
    "poll",
    "POST",
    "/v1/consumers/{consumer_id}/poll",
    "read",
    "Lease partitions of a consumer to this member, and read from them",
    "Poll",
    "Polled",
    (200,),
    (400, 404, 503),
)
COMMIT = Route(
    "commit",
    "POST",
    "/v1/consumers/{consumer_id}/commit",
    "write",
    "Move a consumer's cursors forward",
    "Commit",
    "Committed",
    (200,),
    (400, 404, 409, 422, 503),
    keyed=True,
)
SEEK = Route(
    "seek",
    "POST",
    "/v1/consumers/{consumer_id}/seek",
    "write",
    "Set a consumer's cursors, also back",
    "Seek",
    "Sought",
    (200,),
    (400, 404, 422, 503),
)
LAG = Route(
    "lag",
    "GET",
    "/v1/consumers/{consumer_id}/lag",
    "read",
    "How far a consumer is behind: messages, bytes, seconds",
    "Nothing",
    "Lag",
    (200,),
    (404, 503),
)
EXPLAIN = Route(
    "explain",
    "GET",
    "/v1/consumers/{consumer_id}/explain",
    "read",
    "Why a consumer gets no messages, and what to do",
    "Nothing",
    "Explanation",
    (200,),
    (404, 503),
)
LIST_LAG = Route(
    "list_lag",
    "GET",
    "/v1/lag",
    "read",
    "How many messages the consumers that have a name are behind, the worst first",
    "ListLag",
    "LagList",
    (200,),
    (503,),
)
ROUTING = Route(
    "routing",
    "GET",
    "/v1/routing/{topic}",
    "read",
    "Which brokers lead a topic's partitions, and a grant to go there",
    "Nothing",
    "Routing",
    (200,),
    (404,),
)
CLUSTER = Route("cluster", "GET", "/v1/cluster", "read", "Brokers, managers and what they hold", "Nothing", "Cluster")
CLUSTER_OVERVIEW = Route(
    "cluster_overview", "GET", "/v1/cluster/overview", "read", "Health, rates and alerts", "Nothing", "Overview"
)
CLUSTER_EVENTS = Route(
    "cluster_events", "GET", "/v1/cluster/events", "read", "The same every second, as events", "Nothing", head=False
)
LIST_CONSUMERS = Route(
    "list_consumers",
    "GET",
    "/v1/consumers",
    "read",
    "Consumers, all or those of one topic, a page at a time",
    "ListConsumers",
    "ConsumerList",
    (200,),
    (404,),
)
APPEND_BATCH = Route(
    "append_batch",
    "POST",
    "/v1/brokers/{broker_id}/topics/{topic_id}/partitions/{partition_id}/batches",
    "broker",
    "Append a batch at the leader",
    None,
    "BatchAppended",
    (200,),
    (400, 401, 403, 404, 409, 413, 415, 421, 503, 507),
)
FETCH_BATCHES = Route(
    "fetch_batches",
    "GET",
    "/v1/brokers/{broker_id}/topics/{topic_id}/partitions/{partition_id}/batches",
    "broker",
    "Stored batches from an offset on, as they are",
    "FetchBatches",
    None,
    (200, 204),
    (400, 401, 403, 404, 410, 421, 503),
    head=False,
)
CONSOLE = Route("console", "GET", "/", "read", "The console, for browsers", "Nothing", None, (200,), (404,))
OPENAPI = Route("openapi", "GET", "/openapi.json", "read", "This description as OpenAPI 3.1", "Nothing")
DOCS = Route("docs", "GET", "/docs", "read", "A page to read and try the API", "Nothing")
HEALTHZ = Route("healthz", "GET", "/healthz", "read", "The process answers", "Nothing", "Health")
READYZ = Route(
    "readyz", "GET", "/readyz", "read", "PostgreSQL and the brokers answer too", "Nothing", "Health", (200,), (503,)
)
# The load balancer answers /metrics with those of the whole cluster.
METRICS = Route("metrics", "GET", "/metrics", "read", "Metrics of all processes in Prometheus format", "Nothing")
CLUSTER_METRICS = Route(
    "cluster_metrics", "GET", "/metrics/cluster", "read", "Metrics of all processes in Prometheus format", "Nothing"
)

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
OPERATIONS = (CONSOLE, OPENAPI, DOCS, HEALTHZ, READYZ, METRICS, CLUSTER_METRICS)
LOG_API = (
    PUT_TOPIC,
    DESCRIBE_TOPIC,
    ALTER_TOPIC,
    DELETE_TOPIC,
    OPEN_PRODUCER,
    APPEND_MESSAGES,
    LIST_MESSAGES,
    READ_RANGE,
    TOPIC_EVENTS,
    PARTITION_OFFSETS,
    TOPIC_OFFSETS,
    LIST_CONSUMERS,
    DESCRIBE_CONSUMER,
    DELETE_CONSUMER,
    POLL,
    COMMIT,
    SEEK,
    LAG,
    EXPLAIN,
    LIST_LAG,
    ROUTING,
    CLUSTER,
    CLUSTER_OVERVIEW,
    CLUSTER_EVENTS,
)
DATA_PLANE = (APPEND_BATCH, FETCH_BATCHES)
ROUTES = (*SIMPLE_API, *LOG_API, *STATISTICS, *DATA_PLANE, *OPERATIONS)


def allowed_methods(path: str) -> tuple[str, ...]:
    return tuple(sorted({route.method for route in ROUTES if route.path == path}))
