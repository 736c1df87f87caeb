"""Path and query values of the broker's routes, parsed strictly."""

import re
from functools import lru_cache
from typing import Annotated
from uuid import UUID

from pydantic import BeforeValidator, Field

from myqueue.protocol.errors import InvalidRequest
from service.http_messages import HttpRequest

MAX_PARTITION = (1 << 16) - 1  # two bytes in a batch's header
MAX_BROKER = (1 << 31) - 1
MAX_ASKED_PARTITIONS = 10_000

_DIGITS = re.compile(r"[0-9]{1,19}\Z")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


def _uuid(value: object) -> object:
    if not isinstance(value, str) or not _UUID.match(value):
        raise ValueError("must be a UUID")
    return UUID(value)


TopicId = Annotated[UUID, BeforeValidator(_uuid)]
PartitionId = Annotated[int, Field(ge=0, le=MAX_PARTITION)]


def number_of(values: dict[str, str], name: str, default: int | None, least: int, most: int) -> int:
    """By hand: this comes with every fetch."""
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


def check_known(values: dict[str, str], known: tuple[str, ...]) -> None:
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


def partition_of(request: HttpRequest) -> tuple[UUID, int]:
    values = request.path_values
    return topic_id_of(values["topic_id"]), partition_id_of(values["partition_id"])
