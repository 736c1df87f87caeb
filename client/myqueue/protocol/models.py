"""Request and answer shapes of the public API, for servers and for OpenAPI.

The library does not import this module, so using it needs no pydantic.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, StringConstraints, WithJsonSchema

from myqueue.protocol import limits
from myqueue.protocol.wire_bytes import bytes_from_wire, bytes_to_wire

_INTEGER = re.compile(r"-?[0-9]{1,19}\Z")
MAX_ID = (1 << 31) - 1
MAX_OFFSET = (1 << 63) - 1


def _topic_name(value: object) -> object:
    if isinstance(value, str) and (problem := limits.topic_name_problem(value)):
        raise ValueError(problem)
    return value


def _query_integer(value: object) -> object:
    """Query parameters are text: digits only, no signs, blanks or underscores that int() would let pass."""
    if isinstance(value, str):
        if not _INTEGER.match(value):
            raise ValueError("must be an integer")
        return int(value)
    return value


_BYTES_SCHEMA = {
    "oneOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"base64": {"type": "string", "contentEncoding": "base64"}},
            "required": ["base64"],
            "additionalProperties": False,
        },
    ]
}

TopicName = Annotated[
    str,
    BeforeValidator(_topic_name),
    WithJsonSchema({"type": "string", "pattern": "^(?!__)(?!\\.{1,2}$)[A-Za-z0-9._-]{1,200}$", "examples": ["orders"]}),
]
WireBytes = Annotated[
    bytes, BeforeValidator(bytes_from_wire), PlainSerializer(bytes_to_wire), WithJsonSchema(_BYTES_SCHEMA)
]
# No control characters: PostgreSQL cannot store NUL, and the others only make names that look alike.
ClientName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=limits.MAX_CLIENT_NAME_CHARS, pattern=r"^[^\x00-\x1f\x7f]*$"),
]
Id = Annotated[int, Field(ge=0, le=MAX_ID)]
PartitionId = Annotated[int, Field(ge=0, le=MAX_ID)]
QueryId = Annotated[int, BeforeValidator(_query_integer), Field(ge=0, le=MAX_ID)]


class Request(BaseModel):
    """Strict: no unknown fields, no `true` or `"5"` for a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class CreateTopic(Request):
    name: TopicName
    partitions: Annotated[int, Field(ge=1, le=limits.MAX_PARTITIONS_PER_TOPIC)] = limits.DEFAULT_PARTITIONS
    replication: Annotated[int, Field(ge=1, le=15)] | None = Field(
        None, description="Copies of each partition. Default 3, or the number of brokers if there are fewer."
    )
    retention_ms: Annotated[int, Field(ge=1, le=MAX_OFFSET)] | None = None
    retention_bytes: Annotated[int, Field(ge=1, le=MAX_OFFSET)] | None = None


class RegisterProducer(Request):
    topic: TopicName
    name: ClientName | None = Field(None, description="The same name again gets the same id.")


class FromOffset(Request):
    offset: Annotated[int, Field(ge=0, le=MAX_OFFSET)]


class FromTimestamp(Request):
    timestamp: Annotated[int, Field(ge=0, le=MAX_OFFSET)]


Start = Literal["latest", "earliest"] | FromOffset | FromTimestamp


class RegisterConsumer(Request):
    topic: TopicName
    partition_id: PartitionId | None = None
    name: ClientName | None = Field(None, description="The same name on the same topic gets the same id.")
    start: Start = Field("latest", alias="from")


class Produce(Request):
    topic: TopicName
    producer_id: Id
    message: WireBytes
    key: WireBytes | None = None
    partition_id: PartitionId | None = None


class Query(Request):
    """GET takes query parameters only; their values arrive as text."""


class Consume(Query):
    topic: TopicName
    consumer_id: QueryId
    partition_id: QueryId | None = None
    wait_ms: Annotated[int, BeforeValidator(_query_integer), Field(ge=0)] = Field(
        0, description=f"Wait up to this long for a message; at most {limits.MAX_WAIT_MS}."
    )


class Size(Query):
    topic: TopicName
    consumer_id: QueryId


class Nothing(Query):
    """A call without parameters."""


class Answer(BaseModel):
    status: Literal["success"] = "success"


class TopicCreated(Answer):
    message: str
    partitions: list[int]


class Done(Answer):
    message: str


class TopicList(Answer):
    topics: list[str]


class Partition(BaseModel):
    partition_id: int
    leader: int | None
    replicas: list[int]
    term: int
    beginning_offset: int
    end_offset: int
    size: int
    size_bytes: int


class PartitionList(Answer):
    topic: str
    partitions: list[Partition]


class ProducerRegistered(Answer):
    producer_id: int


class ConsumerRegistered(Answer):
    consumer_id: int


class Produced(Answer):
    partition_id: int
    offset: int


class Consumed(Answer):
    message: WireBytes
    key: WireBytes | None
    partition_id: int
    offset: int
    timestamp: int
    producer_id: int | None


class QueueSize(Answer):
    size: int = Field(description="Messages this consumer has not read yet.")


class Health(Answer):
    service: str
    checks: dict[str, Any] = {}


class Failure(BaseModel):
    status: Literal["failure"] = "failure"
    error_code: int
    message: str
    retriable: bool
    outcome: Literal["not_written", "unknown"] | None = None
    request_id: str | None
    details: dict[str, Any] | None = None
