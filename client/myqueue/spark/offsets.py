"""Where a read starts and ends: from the options, from the brokers, and from a checkpoint. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from myqueue.protocol.errors import InvalidRequest

LATEST, EARLIEST = -1, -2  # as Kafka's source counts them

TopicPartition = tuple[str, int]
OffsetJson = dict[str, dict[str, str | int]]  # as `startingOffsets` takes it

_ID = "id"  # beside the partitions of a topic: a topic that is made again has another one


@dataclass(frozen=True, slots=True)
class EarliestOrLatest:
    offset: int  # LATEST or EARLIEST


@dataclass(frozen=True, slots=True)
class SpecificOffsets:
    offsets: Mapping[str, Mapping[int, int]]  # by topic and partition; LATEST and EARLIEST stand for themselves
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # of offsets that were taken from a query's progress


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    ms: int


@dataclass(frozen=True, slots=True)
class PartitionTimestamps:
    ms: Mapping[str, Mapping[int, int]]  # by topic and partition


OffsetLimit = EarliestOrLatest | SpecificOffsets | AtTimestamp | PartitionTimestamps


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """Of one partition, from its leader."""

    beginning: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicBounds:
    topic_id: str
    partitions: Mapping[int, OffsetBounds]
    leaderless: frozenset[int] = frozenset()  # partitions whose bounds are unknown at the moment


OffsetSnapshot = Mapping[str, TopicBounds]  # by topic


def topic_partitions(snapshot: OffsetSnapshot) -> list[TopicPartition]:
    return [(topic, partition) for topic in sorted(snapshot) for partition in sorted(snapshot[topic].partitions)]


def resolve(
    position: OffsetLimit, kind: str, snapshot: OffsetSnapshot, offset_at: Callable[[TopicPartition, int], int | None]
) -> dict[TopicPartition, int]:
    """The offset in every partition. `kind` is `starting` or `ending`, as the options' names begin.

    `offset_at` finds the first offset appended at a time or later.
    """
    there = topic_partitions(snapshot)
    if isinstance(position, EarliestOrLatest):
        return {tp: _of_bounds(position.offset, _bounds(tp, snapshot)) for tp in there}
    if isinstance(position, SpecificOffsets):
        option = f"{kind}Offsets"
        _check_listed(position.offsets, option, there, f" ({EARLIEST}: earliest, {LATEST}: latest)")
        _check_ids(position, option, snapshot)
        return {tp: _listed(tp, position.offsets[tp[0]][tp[1]], option, _bounds(tp, snapshot)) for tp in there}
    if isinstance(position, PartitionTimestamps):
        _check_listed(position.ms, f"{kind}OffsetsByTimestamp", there)
    found: dict[TopicPartition, int] = {}
    for tp in there:
        bounds = _bounds(tp, snapshot)
        at = offset_at(tp, position.ms if isinstance(position, AtTimestamp) else position.ms[tp[0]][tp[1]])
        found[tp] = bounds.end if at is None else min(max(at, bounds.beginning), bounds.end)
    return found


def _bounds(tp: TopicPartition, snapshot: OffsetSnapshot) -> OffsetBounds:
    return snapshot[tp[0]].partitions[tp[1]]


def _of_bounds(offset: int, bounds: OffsetBounds) -> int:
    return {EARLIEST: bounds.beginning, LATEST: bounds.end}.get(offset, offset)


def _listed(tp: TopicPartition, offset: int, option: str, bounds: OffsetBounds) -> int:
    if offset > bounds.end:
        raise InvalidRequest(f"option {option}: {name_of(tp)}: {offset} is past the end, {bounds.end}")
    return _of_bounds(offset, bounds)


def _check_listed(
    given: Mapping[str, Mapping[int, int]], option: str, there: Iterable[TopicPartition], advice: str = ""
) -> None:
    listed = {(topic, partition) for topic, partitions in given.items() for partition in partitions}
    known = set(there)
    if unknown := sorted(listed - known):
        raise InvalidRequest(f"option {option} names {_names(unknown)}, which this query does not read")
    if missing := sorted(known - listed):
        raise InvalidRequest(
            f"option {option} does not name {_names(missing)}: it must name every partition that is read{advice}"
        )


def _check_ids(position: SpecificOffsets, option: str, snapshot: OffsetSnapshot) -> None:
    for topic, topic_id in position.topic_ids.items():
        if topic in snapshot and snapshot[topic].topic_id != topic_id:
            raise InvalidRequest(
                f"option {option}: topic {topic!r} was deleted and made again since these offsets were taken; leave out"
                f" its {_ID!r} to use them all the same"
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
        """Sorted: Spark compares checkpoints by their text. Spark shows it as the progress of a query."""
        entries: OffsetJson = {topic: {} for topic in sorted({*self.topic_ids, *(topic for topic, _ in self.offsets)})}
        for (topic, partition), offset in sorted(self.offsets.items()):
            entries[topic][str(partition)] = offset
        for topic, topic_id in self.topic_ids.items():
            entries[topic][_ID] = topic_id
        return entries

    @classmethod
    def from_json(cls, checkpoint: Mapping[str, object]) -> "StreamOffset":
        """Also of a checkpoint of releases up to 0.11, which is flat: `{"orders/0": 23, "orders": "<id>"}`."""
        topic_ids: dict[str, str] = {}
        offsets: dict[TopicPartition, int] = {}

        def take(topic: str, partition: str, value: object) -> None:
            if partition == _ID and isinstance(value, str):
                topic_ids[topic] = value
            elif partition.isdecimal() and isinstance(value, int):
                offsets[topic, int(partition)] = value
            else:
                name = f"{topic}/{partition}" if partition != _ID else topic
                raise InvalidRequest(f"the checkpoint holds {name!r}: {value!r}, which is no offset of myqueue")

        for name, value in checkpoint.items():
            if isinstance(value, Mapping):
                for partition, of_partition in value.items():
                    take(name, partition, of_partition)
            else:
                topic, slash, partition = name.rpartition("/")
                take(topic if slash else name, partition if slash else _ID, value)
        return cls(topic_ids, offsets)

    def within(self, snapshot: OffsetSnapshot) -> "StreamOffset":
        """Without topics that were deleted or recreated."""
        ids = {t: i for t, i in self.topic_ids.items() if t in snapshot and snapshot[t].topic_id == i}
        return StreamOffset(ids, {tp: offset for tp, offset in self.offsets.items() if tp[0] in ids})

    def of_topic(self, topic: str) -> dict[int, int]:
        return {partition: offset for (name, partition), offset in self.offsets.items() if name == topic}
