"""Why a consumer gets no messages: decided from what is known of its partitions. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from myqueue.protocol.answers import ExplainedPartition, Reason, ReasonCode

# Of several partitions, the first of these that one has is the answer for the consumer: what it can read comes first,
# then what somebody can change, then that there is nothing.
_BY_WEIGHT: tuple[ReasonCode, ...] = (
    "topic_deleted",
    "messages_waiting",
    "retention_passed",
    "no_leader",
    "revoking",
    "held_by_member",
    "claims_in_flight",
    "at_end",
    "topic_empty",
)


@dataclass(frozen=True, slots=True)
class Holder:
    """The member that has a partition on lease."""

    member: str
    client_id: str | None = None
    host: str | None = None

    def __str__(self) -> str:
        told = [f"client id {self.client_id}"] if self.client_id else []
        told += [f"host {self.host}"] if self.host else []
        return f"member {self.member!r}" + (f" ({', '.join(told)})" if told else "")


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    partition_id: int
    cursor: int
    given_back: int  # below the cursor, to be read again
    in_flight: int  # claimed, and not known to be delivered
    holder: Holder | None
    is_revoking: bool
    replicas: int
    replicas_alive: int
    bounds: tuple[int, int] | None  # beginning and end, None without a leader

    @property
    def unread(self) -> int:
        if self.bounds is None:
            return 0
        beginning, end = self.bounds
        return max(0, end - max(self.cursor, beginning)) + self.given_back


def explain_partition(facts: PartitionFacts) -> ExplainedPartition:
    code, text, action = _reason(facts)
    beginning, end = facts.bounds or (None, None)
    return ExplainedPartition(
        partition_id=facts.partition_id,
        reason=code,
        text=text,
        action=action,
        cursor=facts.cursor,
        beginning_offset=beginning,
        end_offset=end,
        unread=None if facts.bounds is None else facts.unread,
        in_flight=facts.in_flight,
        member=facts.holder and facts.holder.member,
        client_id=facts.holder and facts.holder.client_id,
        host=facts.holder and facts.holder.host,
    )


def _reason(facts: PartitionFacts) -> tuple[ReasonCode, str, str]:
    if facts.bounds is None:
        return (
            "no_leader",
            f"no leader answers; {facts.replicas_alive} of {facts.replicas} replicas are on active brokers",
            "wait a few seconds for an election; if it stays so, GET /v1/cluster shows which brokers are away:"
            " a majority of the replicas has to run",
        )
    if facts.unread:
        return _of_unread(facts)
    beginning, end = facts.bounds
    if facts.in_flight:
        return (
            "claims_in_flight",
            f"{facts.in_flight} messages are on their way to clients of consume, and nothing else is unread",
            "nothing: what is not delivered is read again when its claim expires, within seconds",
        )
    if facts.cursor < beginning:
        return (
            "retention_passed",
            f"retention has deleted offsets {facts.cursor} to {beginning - 1} before they were read,"
            " and nothing has come since",
            "raise the topic's retention (PATCH /v1/topics/{topic}), or read faster; what is deleted is gone",
        )
    if end == 0:
        return (
            "topic_empty",
            "nothing was ever appended to it",
            "produce a message, and see that its producer names this topic and this cluster",
        )
    return (
        "at_end",
        f"every message up to offset {end} was read, or lies before the position at which the consumer began",
        'wait for the next message; to read older ones again, POST /v1/consumers/{consumer_id}/seek {"to": "earliest"}',
    )


def _of_unread(facts: PartitionFacts) -> tuple[ReasonCode, str, str]:
    assert facts.bounds is not None
    beginning, _ = facts.bounds
    messages = f"{facts.unread} messages are unread"
    if facts.holder is not None and facts.is_revoking:
        return (
            "revoking",
            f"{messages}; {facts.holder} has to give the partition up to another member",
            "wait: it moves when that member releases it, or when its lease ends a few seconds after its last poll",
        )
    if facts.holder is not None:
        return (
            "held_by_member",
            f"{messages}; {facts.holder} has the partition on lease, and only that process gets them",
            "if it is not your process, stop it or read under a consumer of your own; it is free a few seconds after"
            " its last poll",
        )
    if facts.cursor < beginning:
        return (
            "retention_passed",
            f"retention has deleted offsets {facts.cursor} to {beginning - 1} before they were read; {messages}",
            "poll: reading goes on at the first message that is stored; to lose no more, raise the topic's retention"
            " or read faster",
        )
    return (
        "messages_waiting",
        f"{messages}, and nothing keeps them from being read",
        "poll or consume; a poll that still gets nothing asks for another consumer, topic or cluster",
    )


def summarize(partitions: Sequence[ExplainedPartition]) -> Reason:
    """Of the whole consumer, which has at least one partition."""
    counts = Counter(partition.reason for partition in partitions)
    code = next(code for code in _BY_WEIGHT if counts[code])
    first = next(partition for partition in partitions if partition.reason == code)
    if len(partitions) == 1:
        return Reason(reason=code, text=first.text, action=first.action)
    others = ", ".join(f"{name} in {counts[name]}" for name in _BY_WEIGHT if counts[name] and name != code)
    where = f"in {counts[code]} of {len(partitions)} partitions" if others else "in all partitions"
    text = f"{where}, as in partition {first.partition_id}: {first.text}"
    return Reason(reason=code, text=f"{text}; otherwise {others}" if others else text, action=first.action)


TOPIC_DELETED = Reason(
    reason="topic_deleted",
    text="the consumer's topic was deleted, and its messages with it; a topic of the same name is another one",
    action="register a consumer of the topic that is there now with POST /consumer/register",
)
