"""What the broker's routes take: path, query and JSON values."""

import re
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple
from uuid import UUID

from pydantic import BeforeValidator, Field

from broker.raft.configuration import MemberId
from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.limits import DEFAULT_FETCH_BYTES, MAX_FETCH_BYTES, MAX_WAIT_MS
from myqueue.protocol.models import MAX_OFFSET, Request, TopicName

MAX_PARTITION = (1 << 16) - 1  # two bytes in a batch's header
MAX_BROKER = (1 << 31) - 1
MAX_MEMBERS = 64
MAX_LIMIT = (1 << 31) - 1
MAX_ASKED_PARTITIONS = 10_000

_DIGITS = re.compile(r"[0-9]{1,19}\Z")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


def _uuid(value: object) -> object:
    if not isinstance(value, str) or not _UUID.match(value):
        raise ValueError("must be a UUID")
    return UUID(value)


TopicId = Annotated[UUID, BeforeValidator(_uuid)]


class Member(Request):
    broker_id: Annotated[int, Field(ge=1, le=MAX_BROKER)]
    incarnation: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]

    @property
    def as_member(self) -> MemberId:
        return MemberId(self.broker_id, int(self.incarnation, 16))


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
    since: Annotated[int, Field(ge=0, le=MAX_OFFSET)] | None = None


class AskOffsets(Request):
    partitions: Annotated[list[Name], Field(max_length=MAX_ASKED_PARTITIONS)]
    timestamp: Annotated[int, Field(ge=0, le=MAX_OFFSET)] | None = None


class Awaited(Request):
    topic_id: TopicId
    partition_id: Annotated[int, Field(ge=0, le=MAX_PARTITION)]
    offset: Annotated[int, Field(ge=-1, le=MAX_OFFSET)]  # -1: to learn where it ends


class AskWait(Request):
    partitions: Annotated[list[Awaited], Field(min_length=1, max_length=MAX_ASKED_PARTITIONS)]
    wait_ms: Annotated[int, Field(ge=0)]


class Fetch(NamedTuple):
    offset: int
    max_bytes: int
    wait_ms: int


def fetch_of(values: dict[str, str]) -> Fetch:
    """By hand: this comes with every fetch."""
    _check_known(values, ("offset", "max_bytes", "wait_ms"))
    return Fetch(
        _number(values, "offset", None, 0, MAX_OFFSET),
        _number(values, "max_bytes", DEFAULT_FETCH_BYTES, 1, MAX_FETCH_BYTES),
        min(_number(values, "wait_ms", 0, 0, MAX_OFFSET), MAX_WAIT_MS),
    )


def messages_of(values: dict[str, str]) -> tuple[int, int]:
    """Offset and limit."""
    _check_known(values, ("offset", "limit"))
    return _number(values, "offset", None, 0, MAX_OFFSET), _number(values, "limit", 1, 1, MAX_LIMIT)


def _number(values: dict[str, str], name: str, default: int | None, least: int, most: int) -> int:
    text = values.get(name)
    if text is None:
        if default is None:
            raise InvalidRequest(f"{name}: missing")
        return default
    if not _DIGITS.match(text):
        raise InvalidRequest(f"{name}: must be a whole number")
    number = int(text)
    if not least <= number <= most:
        raise InvalidRequest(f"{name}: must be {least} to {most}")
    return number


def _check_known(values: dict[str, str], known: tuple[str, ...]) -> None:
    for name in values:
        if name not in known:
            raise InvalidRequest(f"{name}: unknown field")


@lru_cache(maxsize=4096)
def topic_id_of(text: str) -> UUID:
    if not _UUID.match(text):
        raise InvalidRequest("topic_id: must be a UUID")
    return UUID(text)


def partition_id_of(text: str) -> int:
    if not _DIGITS.match(text) or int(text) > MAX_PARTITION:
        raise InvalidRequest(f"partition_id: must be a whole number up to {MAX_PARTITION}")
    return int(text)
