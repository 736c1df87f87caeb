"""Requests of the public API, for servers and for OpenAPI; responses are in `answers`.

The library does not import this module, so using it needs no pydantic.
"""

import re
from collections.abc import Hashable, Iterable
from typing import Annotated, Literal, Self
from uuid import UUID

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from myqueue.protocol import limits
from myqueue.protocol.json_bytes import bytes_from_json, bytes_to_json

_INTEGER = re.compile(r"-?[0-9]{1,19}\Z")
MAX_ID = (1 << 31) - 1
MAX_OFFSET = (1 << 63) - 1


def _topic_name(value: object) -> object:
    if isinstance(value, str) and (problem := limits.topic_name_problem(value)):
        raise ValueError(problem)
    return value


def query_integer(value: object) -> object:
    """Query parameters are text: digits only, without the signs, blanks and underscores that int() accepts."""
    if isinstance(value, str):
        if not _INTEGER.match(value):
            raise ValueError("must be an integer")
        return int(value)
    return value


BYTES_SCHEMA = {
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
JsonBytes = Annotated[
    bytes, BeforeValidator(bytes_from_json), PlainSerializer(bytes_to_json), WithJsonSchema(BYTES_SCHEMA)
]
# No control characters: PostgreSQL cannot store NUL, and the others only make names that look alike.
ClientName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=limits.MAX_CLIENT_NAME_CHARS, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$"),
]
Id = Annotated[int, Field(ge=0, le=MAX_ID)]
PartitionId = Annotated[int, Field(ge=0, le=MAX_ID)]
_Limit = Annotated[int, Field(ge=1, le=MAX_OFFSET)]
QueryId = Annotated[int, BeforeValidator(query_integer), Field(ge=0, le=MAX_ID)]


class Request(BaseModel):
    """Strict: no unknown fields, no `true` or `"5"` for a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PutTopic(Request):
    partitions: Annotated[int, Field(ge=1, le=limits.MAX_PARTITIONS_PER_TOPIC)] = limits.DEFAULT_PARTITIONS
    replication: Annotated[int, Field(ge=1, le=15)] | None = Field(
        None, description="Copies of each partition. Default 3, or the number of brokers if there are fewer."
    )
    retention_ms: _Limit | None = None
    retention_bytes: _Limit | None = None


class CreateTopic(PutTopic):
    name: TopicName


class RegisterProducer(Request):
    topic: TopicName
    name: ClientName | None = Field(None, description="The same name again gets the same id.")
    topic_id: UUID | None = Field(
        None, description="Of the topic that is meant: if it was deleted, that is an error, and no topic is created."
    )


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
    message: JsonBytes
    key: JsonBytes | None = None
    partition_id: PartitionId | None = None


class Query(Request):
    """GET takes query parameters only; their values arrive as text."""


class Consume(Query):
    topic: TopicName
    consumer_id: QueryId
    partition_id: QueryId | None = None
    wait_ms: Annotated[int, BeforeValidator(query_integer), Field(ge=0)] = Field(
        0, description=f"Wait up to this long for a message; at most {limits.MAX_WAIT_MS}."
    )


class Size(Query):
    topic: TopicName
    consumer_id: QueryId


class Nothing(Query):
    """A call without parameters."""


# Log API: requests


class AlterTopic(Request):
    """What is not given stays as it is."""

    retention_ms: _Limit | None = Field(None, description="Delete what is older. Null: whatever its age, it stays.")
    retention_bytes: _Limit | None = Field(None, description="Delete the oldest above this size. Null: no limit.")

    @model_validator(mode="before")
    @classmethod
    def _changeable(cls, values: object) -> object:
        if isinstance(values, dict):
            for name in ("partitions", "replication"):
                if name in values:
                    raise ValueError(f"{name} of a topic cannot be changed; only its retention can")
        return values

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("give retention_ms, retention_bytes or both; null removes a limit")
        return self


class OpenProducer(Request):
    name: ClientName | None = Field(None, description="The same name again gets the same id, and a newer epoch.")
    create: bool = Field(True, description="Whether a missing topic is created, or an error.")


class MessageHeader(Request):
    key: Annotated[str, StringConstraints(max_length=limits.MAX_HEADER_KEY_CHARS)]
    value: JsonBytes | None = None


class NewMessage(Request):
    value: JsonBytes
    key: JsonBytes | None = None
    partition_id: PartitionId | None = None
    partition: PartitionId | None = Field(
        None, description="Older name of partition_id.", json_schema_extra={"deprecated": True}
    )
    timestamp: Annotated[int, Field(ge=0, le=MAX_OFFSET)] | None = Field(None, description="Default: now.")
    headers: Annotated[list[MessageHeader], Field(max_length=limits.MAX_HEADERS)] = []


class AppendMessages(Request):
    messages: Annotated[list[NewMessage], Field(min_length=1, max_length=limits.MAX_POSTED_MESSAGES)]


_Offset = Annotated[int, BeforeValidator(query_integer), Field(ge=0, le=MAX_OFFSET)]
_WaitMs = Annotated[int, BeforeValidator(query_integer), Field(ge=0)]
_WAIT = f"Wait up to this long for a message; at most {limits.MAX_WAIT_MS}."


class ListMessages(Query):
    offset: _Offset | None = Field(None, description="The first offset wanted; this or a timestamp.")
    timestamp: _Offset | None = Field(None, description="Start with what was appended at this time (ms) or later.")
    limit: Annotated[int, BeforeValidator(query_integer), Field(ge=1, le=limits.MAX_LISTED_MESSAGES)] = (
        limits.DEFAULT_LISTED_MESSAGES
    )
    max_bytes: Annotated[int, BeforeValidator(query_integer), Field(ge=1, le=limits.MAX_FETCH_BYTES)] = (
        limits.DEFAULT_FETCH_BYTES
    )
    wait_ms: _WaitMs = Field(0, description=_WAIT)

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if (self.offset is None) == (self.timestamp is None):
            raise ValueError("give either offset or timestamp")
        return self


class AskOffsets(Query):
    timestamp: _Offset | None = None


class FetchBatches(Query):
    offset: _Offset
    max_bytes: Annotated[int, BeforeValidator(query_integer), Field(ge=1, le=limits.MAX_FETCH_BYTES)] = (
        limits.DEFAULT_FETCH_BYTES
    )
    wait_ms: _WaitMs = Field(0, description=_WAIT)


MemberName = Annotated[
    str, StringConstraints(max_length=limits.MAX_CLIENT_NAME_CHARS, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")
]

HostName = Annotated[
    str, StringConstraints(min_length=1, max_length=limits.MAX_HOST_CHARS, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")
]


class Position(Request):
    partition_id: PartitionId
    offset: Annotated[int, Field(ge=0, le=MAX_OFFSET)]


class Poll(Request):
    member: MemberName = Field("", description="Names the process: members of one consumer split its partitions.")
    client_id: ClientName | None = Field(None, description="Names the process to people: shown with its leases.")
    host: HostName | None = Field(None, description="Where the process runs: shown with its leases.")
    max_messages: Annotated[int, Field(ge=0, le=limits.MAX_LISTED_MESSAGES)] = Field(
        limits.DEFAULT_POLLED_MESSAGES, description="0: only renew the leases."
    )
    max_bytes: Annotated[int, Field(ge=1, le=limits.MAX_FETCH_BYTES)] = limits.DEFAULT_FETCH_BYTES
    wait_ms: Annotated[int, Field(ge=0)] = Field(0, description=_WAIT)
    positions: Annotated[list[Position], Field(max_length=limits.MAX_PARTITIONS_PER_TOPIC)] = Field(
        [], description="Read from here on instead of from the cursors, where that is further."
    )
    released: Annotated[list[PartitionId], Field(max_length=limits.MAX_PARTITIONS_PER_TOPIC)] = Field(
        [], description="Partitions that this member is done with: another one may have them."
    )
    leave: bool = Field(False, description="Give back every lease of this member.")
    assignment: Annotated[str, Field(max_length=limits.MAX_ASSIGNMENT_CHARS)] | None = Field(
        None,
        description="Of the last answer. A poll waits only while the leases are still these; "
        "with `max_messages` 0 it waits for nothing else.",
    )


class CommitOffset(Request):
    partition_id: PartitionId
    offset: Annotated[int, Field(ge=0, le=MAX_OFFSET)] = Field(description="The next offset to read.")
    generation: Annotated[int, Field(ge=0, le=MAX_OFFSET)] | None = Field(
        None, description="Of the lease under which the messages were read."
    )


class Commit(Request):
    member: MemberName = ""
    offsets: Annotated[list[CommitOffset], Field(min_length=1, max_length=limits.MAX_PARTITIONS_PER_TOPIC)] | None = (
        None
    )
    event_id: Annotated[str, StringConstraints(min_length=1, max_length=limits.MAX_EVENT_ID_CHARS)] | None = Field(
        None, description="Of an event of the topic's stream: everything up to it is done. Instead of `offsets`."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.offsets is None) == (self.event_id is None):
            raise ValueError("give either offsets or event_id")
        return self


class Seek(Request):
    partition_id: PartitionId | None = Field(None, description="Default: all partitions of the consumer.")
    to: Start


PageLimit = Annotated[int, BeforeValidator(query_integer), Field(ge=1, le=limits.MAX_PAGE)]
AFTER = "Only those with a higher consumer_id: `next` of the page before."


class ListConsumers(Query):
    topic: TopicName | None = Field(None, description="Only consumers of this topic.")
    name: ClientName | None = Field(None, description="Only consumers of this name: each topic may have one.")
    active_since: Annotated[int, BeforeValidator(query_integer), Field(ge=0, le=MAX_OFFSET)] | None = Field(
        None, description="Only consumers that have a name or were used since then (ms)."
    )
    limit: PageLimit = limits.DEFAULT_PAGE
    after: QueryId | None = Field(None, description=AFTER)


class ListLag(Query):
    limit: PageLimit = limits.DEFAULT_PAGE


# Statistics: runs of jobs, and what they found

JobName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,100}$")]
Trigger = Literal["schedule", "manual", "caught_up"]
Outcome = Literal["succeeded", "failed"]
MINUTE_MS = 60_000
_Count = Annotated[int, Field(ge=0, le=MAX_OFFSET)]
_Timestamp = Annotated[int, Field(ge=-MAX_OFFSET - 1, le=MAX_OFFSET)]  # as clients set it: any number


class BeginRun(Request):
    job: JobName
    holder: ClientName = Field(description="Names the process that runs it, for whoever finds the job running.")
    trigger: Trigger = "manual"
    tick: _Count | None = Field(
        None, description="The time (ms) for which the schedule wants this run: each is run once. Null: no such time."
    )


class EndRun(Request):
    outcome: Outcome
    rows: _Count = Field(0, description="Messages or rows that the run has gone through.")
    left_out: _Count = Field(0, description="Consumers that were to be measured, but lie beyond the run's limit.")
    message: Annotated[str, StringConstraints(max_length=2000, pattern=r"^[^\x00]*$")] | None = None


class PartitionMeasure(Request):
    """What was newly read of a partition, and what the brokers say of it now."""

    topic: TopicName
    topic_id: UUID
    partition_id: PartitionId
    from_offset: _Count | None = Field(None, description="Of the first message newly read; null: there was none.")
    to_offset: _Count | None = Field(None, description="After the last message newly read.")
    messages: _Count = 0
    payload_bytes: _Count = Field(
        0, validation_alias=AliasChoices("payload_bytes", "bytes"), description="Lengths of keys and values."
    )
    first_timestamp: _Timestamp | None = None
    last_timestamp: _Timestamp | None = None
    gaps: _Count = Field(0, description="Offsets missing among what was newly read.")
    duplicates: _Count = Field(0, description="Messages newly read whose offset another one has too.")
    beginning_offset: _Count
    end_offset: _Count
    stored_bytes: _Count | None = Field(None, description="What the partition takes on its leader's disk.")

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.end_offset < self.beginning_offset:
            raise ValueError("end_offset lies below beginning_offset")
        if self.from_offset is None or self.to_offset is None:
            if self.from_offset is not None or self.to_offset is not None:
                raise ValueError("give both from_offset and to_offset, or none of them")
            if self.messages or self.payload_bytes or self.gaps or self.duplicates:
                raise ValueError("without from_offset and to_offset nothing was newly read: all counts must be 0")
        elif self.to_offset <= self.from_offset:
            raise ValueError("to_offset must lie above from_offset")
        elif self.messages > self.to_offset - self.from_offset + self.duplicates:
            raise ValueError("more messages than there are offsets from from_offset to to_offset")
        return self


class TopicMinute(Request):
    """What was newly read of one minute of a topic: it is added to what is known of that minute."""

    topic: TopicName
    topic_id: UUID
    minute: Annotated[int, Field(ge=0, le=MAX_OFFSET, multiple_of=MINUTE_MS)] = Field(description="Its start, in ms.")
    messages: _Count
    payload_bytes: _Count = Field(
        validation_alias=AliasChoices("payload_bytes", "bytes"), description="Lengths of keys and values."
    )


class ConsumerLagMeasure(Request):
    consumer_id: Id
    topic: TopicName
    partition_id: PartitionId
    cursor: _Count
    end_offset: _Count
    messages: _Count
    stored_bytes: _Count = Field(
        validation_alias=AliasChoices("stored_bytes", "bytes"), description="What the unread messages take on disk."
    )
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RunResults(Request):
    query_id: ClientName | None = Field(
        None,
        description="The query that reads on where it stopped; null: none does. Another one than the job's takes over"
        " with part 0 of its batch 0 only.",
    )
    batch_id: _Count | None = Field(None, description="Of the query's batch; null: nothing was newly read.")
    part: _Count = Field(0, description="Of a batch that is too large for one post: sent in order, counted from 0.")
    replace: bool = Field(False, description="These are no additions, but the whole: an audit read everything.")
    partitions: Annotated[list[PartitionMeasure], Field(max_length=limits.MAX_MEASURED_PARTITIONS)] = []
    topics: Annotated[list[TopicMinute], Field(max_length=limits.MAX_MEASURED_MINUTES)] = []
    consumers: Annotated[list[ConsumerLagMeasure], Field(max_length=limits.MAX_MEASURED_LAGS)] = []

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.batch_id is not None and self.query_id is None:
            raise ValueError("batch_id needs a query_id")
        if self.batch_id is not None and self.replace:
            raise ValueError("replace and batch_id exclude each other")
        new = bool(self.topics) or any(measure.from_offset is not None for measure in self.partitions)
        if new and self.batch_id is None and not self.replace:
            raise ValueError("what was newly read needs query_id and batch_id, so that it counts once")
        _once("partitions", ((m.topic_id, m.partition_id) for m in self.partitions))
        _once("topics", ((m.topic_id, m.minute) for m in self.topics))
        _once("consumers", ((m.consumer_id, m.partition_id) for m in self.consumers))
        return self


def _once(name: str, keys: Iterable[Hashable]) -> None:
    seen: set[Hashable] = set()
    for place, key in enumerate(keys):
        if key in seen:
            raise ValueError(f"{name}.{place}: is there twice")
        seen.add(key)
