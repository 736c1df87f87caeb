"""Answers of the statistics API. `*_per_minute` are messages; `payload_bytes` and `stored_bytes` are told apart."""

from typing import Literal

from pydantic import BaseModel, Field

from myqueue.protocol.answers import Answer

_PAYLOAD = "Lengths of keys and values."
_STORED = "What the messages take on the leader's disk, as batches; null: not measured."
_IN = "Messages appended since the point before; null for the first one."
_OUT = "Messages that consumers read since the point before; null: not measured, or a cursor was moved back."
_CATCH_UP = "Seconds until nothing is unread at these rates; null: never."
_HISTORY = "Newest first; with `from`, `to`, `last` or `step`, rates are those between the points that are listed."


class RunBegun(Answer):
    run_id: int
    job: str
    started_at: int
    lease_ms: int = Field(description="Renew it within this time, or another run may take its place.")


class RunRenewed(Answer):
    lease_ms: int


class ResultsTaken(Answer):
    applied: bool = Field(description="False: this batch was taken over before, nothing has changed.")
    skipped: int = Field(
        description="Rows of topics, partitions or consumers that are not there (any more), and minutes that are too"
        " old or lie more than a day ahead."
    )


class Run(BaseModel):
    run_id: int
    job: str
    holder: str
    trigger: Literal["schedule", "manual", "caught_up"]
    tick: int | None = Field(description="The time for which the schedule wanted it.")
    started_at: int
    ended_at: int | None
    outcome: Literal["running", "succeeded", "failed", "lost"] = Field(
        description="Lost: its lease expired without a renewal."
    )
    rows: int
    left_out: int = Field(description="Consumers that were to be measured, but lay beyond the run's limit.")
    message: str | None


class RunList(Answer):
    runs: list[Run]


class PartitionFigures(BaseModel):
    messages: int = Field(description="From first_offset to end_offset.")
    payload_bytes: int = Field(description=_PAYLOAD)
    stored_bytes: int | None = Field(description=_STORED)
    first_offset: int = Field(description="The first one that is still stored.")
    end_offset: int = Field(description="How far the figures reach: one after the last message measured.")
    rate_in_per_minute: float | None = Field(description=_IN)
    rate_out_per_minute: float | None = Field(description=_OUT)
    computed_at: int
    bytes: int = Field(description="The former name of payload_bytes.")
    rate_per_minute: float | None = Field(description="The former name of rate_in_per_minute.")


class PartitionStats(PartitionFigures):
    topic: str
    partition_id: int
    bytes_exact: bool = Field(description="False: retention took away messages whose payload bytes were estimated.")
    log_end_offset: int = Field(description="Where the partition ended, as its leader said.")
    first_timestamp: int | None
    last_timestamp: int | None
    gaps: int = Field(description="Offsets that were missing.")
    duplicates: int = Field(description="Messages that had an offset of another one.")
    job: str
    history: list[PartitionFigures] = Field(description=_HISTORY)


class PartitionStatsList(Answer):
    partitions: list[PartitionStats]


class TopicFigures(BaseModel):
    partitions: int
    messages: int
    payload_bytes: int = Field(description=_PAYLOAD)
    stored_bytes: int | None = Field(description=_STORED)
    end_offsets: int = Field(description="The sum over partitions: messages that were ever appended.")
    skew: float | None = Field(
        description="Messages of the largest partition by the mean of all: 1 is even; null: the topic is empty."
    )
    rate_in_per_minute: float | None = Field(description=_IN)
    rate_out_per_minute: float | None = Field(description=_OUT)
    computed_at: int


class TopicTotals(TopicFigures):
    topic: str
    history: list[TopicFigures] = Field(description=_HISTORY)


class TopicTotalsList(Answer):
    topics: list[TopicTotals]


class LagFigures(BaseModel):
    cursor: int
    end_offset: int
    messages: int
    stored_bytes: int = Field(description="What the unread messages take on the leader's disk.")
    seconds: float = Field(description="Age of the oldest unread message.")
    rate_in_per_minute: float | None = Field(description=_IN)
    rate_out_per_minute: float | None = Field(description=_OUT)
    catch_up_seconds: float | None = Field(description=_CATCH_UP)
    computed_at: int
    bytes: int = Field(description="The former name of stored_bytes.")


class ConsumerStats(LagFigures):
    consumer_id: int
    name: str | None
    topic: str
    partition_id: int
    history: list[LagFigures] = Field(description=_HISTORY)


class ConsumerStatsList(Answer):
    consumers: list[ConsumerStats]
    next: int | None = Field(description="As in the list of consumers.")


class ConsumerFigures(BaseModel):
    partitions: int
    messages: int
    stored_bytes: int = Field(description="What the unread messages take on the leaders' disks.")
    seconds: float = Field(description="Age of the oldest unread message of all partitions.")
    cursors: int = Field(description="The sum over partitions.")
    end_offsets: int = Field(description="The sum over partitions.")
    rate_in_per_minute: float | None = Field(description=_IN)
    rate_out_per_minute: float | None = Field(description=_OUT)
    catch_up_seconds: float | None = Field(description="Of the partition that takes longest; null: never.")
    computed_at: int


class ConsumerTotals(ConsumerFigures):
    consumer_id: int
    name: str | None
    topic: str
    history: list[ConsumerFigures] = Field(description=_HISTORY)


class ConsumerTotalsList(Answer):
    consumers: list[ConsumerTotals]
    next: int | None = Field(description="As in the list of consumers.")


class MinuteFigures(BaseModel):
    topic: str
    minute: int = Field(description="The start of the minute, or of the `step` over which minutes are summed.")
    messages: int
    payload_bytes: int = Field(description=_PAYLOAD)
    bytes: int = Field(description="The former name of payload_bytes.")


class TopicMinuteList(Answer):
    topics: list[MinuteFigures]
