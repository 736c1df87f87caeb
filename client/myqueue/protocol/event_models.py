"""Event streams and ranges of a topic: the queries, and the data of events that are no messages."""

from typing import Annotated, Literal, Self
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, WithJsonSchema, model_validator

from myqueue.protocol.limits import MAX_EVENT_ID_CHARS
from myqueue.protocol.models import MAX_OFFSET, ClientName, Query, QueryId, query_integer
from myqueue.protocol.stats_queries import Duration

EventId = Annotated[str, StringConstraints(min_length=1, max_length=MAX_EVENT_ID_CHARS)]


def _start(value: object) -> object:
    return value if value in ("earliest", "latest") else query_integer(value)


_From = Annotated[
    Literal["earliest", "latest"] | Annotated[int, Field(ge=0, le=MAX_OFFSET // 1000)],
    BeforeValidator(_start),
    WithJsonSchema({"type": "string", "examples": ["earliest", "latest", "1700000000000"]}),
]


class TopicEvents(Query):
    from_: _From | None = Field(
        None, alias="from", description="`earliest`, `latest` (default), or a time (ms): what was appended since then."
    )
    last: Duration | None = Field(None, description="What was appended in the last 90s, 24h, …; instead of `from`.")
    partition_id: QueryId | None = Field(None, description="Only this partition.")
    consumer: ClientName | None = Field(
        None, description="Start at the cursors of the topic's consumer of this name; instead of `from`."
    )
    last_event_id: EventId | None = Field(
        None, description="Go on behind this event, wherever else it would start; a Last-Event-ID header counts first."
    )

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        given = [name for name in ("from_", "last", "consumer") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[1].rstrip('_')}: give either from, last or consumer")
        return self


RangeFormat = Literal["json", "ndjson", "arrow"]


class AskRange(Query):
    topic_id: Annotated[UUID, Field(strict=False)] | None = Field(
        None, description="Of the topic; without it, the answer is a redirect to the URL that has it."
    )
    format: RangeFormat = "json"


class GapEvent(BaseModel):
    """Data of `event: gap`: messages that nobody can read any more."""

    partition_id: int
    from_offset: int
    to_offset: int  # the next offset that is read
    messages: int
    reason: Literal["retention"] = "retention"


class EndEvent(BaseModel):
    """Data of `event: end`: nothing will ever follow."""

    topic: str
    reason: Literal["topic_deleted"] = "topic_deleted"
