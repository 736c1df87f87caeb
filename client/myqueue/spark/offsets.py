"""Where a read starts and ends: from the options, from the brokers, and from a checkpoint. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from myqueue.protocol.errors import InvalidRequest

LATEST, EARLIEST = -1, -2  # as Kafka's source counts them

TopicPartition = tuple[str, int]
OffsetJson = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class EarliestOrLatest:
    offset: int  # LATEST or EARLIEST


@dataclass(frozen=True, slots=True)
class SpecificOffsets:
    offsets: Mapping[str, Mapping[int, int]]  # by topic and partition; LATEST and EARLIEST stand for themselves


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    ms: int


OffsetLimit = EarliestOrLatest | SpecificOffsets | AtTimestamp


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """Of one partition, from its leader."""

    beginning: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicBounds:
    topic_id: str
    partitions: Mapping[int, OffsetBounds]


OffsetSnapshot = Mapping[str, TopicBounds]  # by topic


def topic_partitions(snapshot: OffsetSnapshot) -> list[TopicPartition]:
    return [(topic, partition) for topic in sorted(snapshot) for partition in sorted(snapshot[topic].partitions)]


def resolve(
    position: OffsetLimit, option: str, snapshot: OffsetSnapshot, offset_at: Callable[[TopicPartition, int], int | None]
) -> dict[TopicPartition, int]:
    """The offset in every partition. `offset_at` finds the first one appended at a time or later."""
    found: dict[TopicPartition, int] = {}
    if isinstance(position, SpecificOffsets):
        _check_listed(position, option, topic_partitions(snapshot))
    for tp in topic_partitions(snapshot):
        bounds = snapshot[tp[0]].partitions[tp[1]]
        if isinstance(position, AtTimestamp):
            at = offset_at(tp, position.ms)
            found[tp] = bounds.end if at is None else min(max(at, bounds.beginning), bounds.end)
            continue
        offset = position.offset if isinstance(position, EarliestOrLatest) else position.offsets[tp[0]][tp[1]]
        if offset > bounds.end:
            raise InvalidRequest(f"option {option}: {name_of(tp)}: {offset} is past the end, {bounds.end}")
        found[tp] = {EARLIEST: bounds.beginning, LATEST: bounds.end}.get(offset, offset)
    return found


def _check_listed(position: SpecificOffsets, option: str, there: Iterable[TopicPartition]) -> None:
    listed = {(topic, partition) for topic, offsets in position.offsets.items() for partition in offsets}
    known = set(there)
    if unknown := sorted(listed - known):
        raise InvalidRequest(f"option {option} names {_names(unknown)}, which this query does not read")
    if missing := sorted(known - listed):
        raise InvalidRequest(
            f"option {option} does not name {_names(missing)}: it must name every partition that is read "
            f"({EARLIEST}: earliest, {LATEST}: latest)"
        )


def name_of(tp: TopicPartition) -> str:
    return f"{tp[0]}/{tp[1]}"


def _names(several: Iterable[TopicPartition]) -> str:
    return ", ".join(map(name_of, several))


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a stream has read: the next offset of every partition, and the id of every topic."""

    topic_ids: Mapping[str, str]
    offsets: Mapping[TopicPartition, int]

    def to_json(self) -> OffsetJson:
        """Sorted: Spark compares checkpoints by their text."""
        entries: OffsetJson = dict(self.topic_ids)
        entries.update((name_of(tp), offset) for tp, offset in self.offsets.items())
        return dict(sorted(entries.items()))

    @classmethod
    def from_json(cls, checkpoint: Mapping[str, object]) -> "StreamOffset":
        topic_ids: dict[str, str] = {}
        offsets: dict[TopicPartition, int] = {}
        for name, value in checkpoint.items():
            topic, slash, partition = name.partition("/")  # no topic name has one
            if slash and partition.isdecimal() and isinstance(value, int):
                offsets[topic, int(partition)] = value
            elif not slash and isinstance(value, str):
                topic_ids[topic] = value
            else:
                raise InvalidRequest(f"the checkpoint holds {name!r}: {value!r}, which is no offset of myqueue")
        return cls(topic_ids, offsets)

    def within(self, snapshot: OffsetSnapshot) -> "StreamOffset":
        """Without topics that were deleted or recreated."""
        ids = {t: i for t, i in self.topic_ids.items() if t in snapshot and snapshot[t].topic_id == i}
        return StreamOffset(ids, {tp: offset for tp, offset in self.offsets.items() if tp[0] in ids})

    def of_topic(self, topic: str) -> dict[int, int]:
        return {partition: offset for (name, partition), offset in self.offsets.items() if name == topic}
