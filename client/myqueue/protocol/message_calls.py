"""Bodies of the calls to a broker about messages: append, wait, offsets. Their routes are in `internal`."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic validates these; before 3.12 it needs this one


class AppendResult(TypedDict, total=False):
    """One for each message of the batch, in order: an offset, or the error that refused it."""

    offset: int
    duplicate: bool  # the offset is that of an earlier append under the same idempotency key
    error_code: int


class AppendAnswer(TypedDict):
    status: Literal["success"]
    results: list[AppendResult]
    append_time: int
    end_offset: int


class AppendFailure(TypedDict):
    error: dict[str, Any]  # an error's body


class AppendAnswers(TypedDict):
    status: Literal["success"]
    answers: list[AppendAnswer | AppendFailure]  # one for each batch, in order


class Awaited(TypedDict):
    topic_id: str
    partition_id: int
    offset: int


class WaitRequest(TypedDict):
    partitions: list[Awaited]
    wait_ms: int


class Grown(TypedDict):
    topic_id: str
    partition_id: int
    end_offset: int  # the replica's high watermark; -1: not held here


class WaitAnswer(TypedDict):
    status: Literal["success"]
    grown: list[Grown]  # none: time was up


class PartitionName(TypedDict):
    topic_id: str
    partition_id: int
    since: NotRequired[int | None]  # an offset: answer also how much is stored from it on


class OffsetsRequest(TypedDict):
    partitions: list[PartitionName]
    timestamp: int | None  # when given, `offset_at` is the first offset appended at or after it


class Offsets(TypedDict):
    topic_id: str
    partition_id: int
    leader: int  # the broker that answers
    term: int
    beginning_offset: int
    end_offset: int
    size_bytes: int
    offset_at: int | None
    bytes_since: NotRequired[int | None]  # stored from the requested offset to the end
    oldest_since: NotRequired[int | None]  # append time of that offset's message; None at the end


class OffsetsAnswer(TypedDict):
    status: Literal["success"]
    offsets: list[Offsets | None]  # None: this broker does not hold the partition
