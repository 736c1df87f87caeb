"""What the broker's routes take: path, query and JSON values."""

import re
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BeforeValidator, Field

from broker.raft import identity
from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.models import MAX_OFFSET, Query, Request, TopicName

MAX_PARTITION = (1 << 16) - 1  # two bytes in a batch's header
MAX_BROKER = (1 << 31) - 1
MAX_MEMBERS = 64
MAX_LIMIT = (1 << 31) - 1
MAX_ASKED_PARTITIONS = 10_000

_DIGITS = re.compile(r"[0-9]{1,19}\Z")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


def _whole_number(value: object) -> object:
    if not isinstance(value, str) or not _DIGITS.match(value):
        raise ValueError("must be a whole number")
    return int(value)


def _uuid(value: object) -> object:
    if not isinstance(value, str) or not _UUID.match(value):
        raise ValueError("must be a UUID")
    return UUID(value)


TopicId = Annotated[UUID, BeforeValidator(_uuid)]


class Fetch(Query):
    offset: Annotated[int, BeforeValidator(_whole_number), Field(le=MAX_OFFSET)]
    limit: Annotated[int, BeforeValidator(_whole_number), Field(ge=1, le=MAX_LIMIT)] = 1


class Member(Request):
    broker_id: Annotated[int, Field(ge=1, le=MAX_BROKER)]
    incarnation: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]

    @property
    def as_member(self) -> identity.Member:
        return identity.Member(self.broker_id, int(self.incarnation, 16))


class Spec(Request):
    topic: TopicName
    founders: Annotated[list[Member], Field(min_length=1, max_length=MAX_MEMBERS)]
    retention_ms: Annotated[int, Field(ge=1, le=MAX_OFFSET)] | None
    retention_bytes: Annotated[int, Field(ge=1, le=MAX_OFFSET)] | None


class Change(Request):
    step: Literal["add_learner", "promote", "remove"]
    member: Member
    expected: Annotated[int, Field(ge=0, le=MAX_OFFSET)]


class Wish(Request):
    broker_id: Annotated[int, Field(ge=1, le=MAX_BROKER)] | None


class Name(Request):
    topic_id: TopicId
    partition_id: Annotated[int, Field(ge=0, le=MAX_PARTITION)]


class AskOffsets(Request):
    partitions: Annotated[list[Name], Field(max_length=MAX_ASKED_PARTITIONS)]
    timestamp: Annotated[int, Field(ge=0, le=MAX_OFFSET)] | None = None


def topic_id_of(text: str) -> UUID:
    if not _UUID.match(text):
        raise InvalidRequest("topic_id: must be a UUID")
    return UUID(text)


def partition_id_of(text: str) -> int:
    if not _DIGITS.match(text) or int(text) > MAX_PARTITION:
        raise InvalidRequest(f"partition_id: must be a whole number up to {MAX_PARTITION}")
    return int(text)
