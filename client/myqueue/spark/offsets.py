"""Where a read starts and ends: what the options say, what the brokers say, and what a checkpoint remembers. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from myqueue.protocol.errors import InvalidRequest

LATEST, EARLIEST = -1, -2  # as Kafka's source counts them

Place = tuple[str, int]  # topic and partition
Checkpoint = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class Everywhere:
    offset: int  # LATEST or EARLIEST


@dataclass(frozen=True, slots=True)
class Listed:
    offsets: Mapping[str, Mapping[int, int]]  # by topic and partition; LATEST and EARLIEST stand for themselves


@dataclass(frozen=True, slots=True)
class AtTime:
    ms: int


Position = Everywhere | Listed | AtTime


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one partition, as its leader says."""

    beginning: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicBounds:
    topic_id: str
    partitions: Mapping[int, Bounds]


Survey = Mapping[str, TopicBounds]  # by topic


def places(survey: Survey) -> list[Place]:
    return [(topic, partition) for topic in sorted(survey) for partition in sorted(survey[topic].partitions)]


def resolve(
    position: Position, option: str, survey: Survey, offset_at: Callable[[Place, int], int | None]
) -> dict[Place, int]:
    """The offset in every partition. `offset_at` tells the first one appended at a time or later."""
    found: dict[Place, int] = {}
    if isinstance(position, Listed):
        _check_listed(position, option, places(survey))
    for place in places(survey):
        bounds = survey[place[0]].partitions[place[1]]
        if isinstance(position, AtTime):
            at = offset_at(place, position.ms)
            found[place] = bounds.end if at is None else min(max(at, bounds.beginning), bounds.end)
            continue
        offset = position.offset if isinstance(position, Everywhere) else position.offsets[place[0]][place[1]]
        if offset > bounds.end:
            raise InvalidRequest(f"option {option}: {name_of(place)}: {offset} is past the end, {bounds.end}")
        found[place] = {EARLIEST: bounds.beginning, LATEST: bounds.end}.get(offset, offset)
    return found


def _check_listed(position: Listed, option: str, there: Iterable[Place]) -> None:
    listed = {(topic, partition) for topic, offsets in position.offsets.items() for partition in offsets}
    known = set(there)
    if unknown := sorted(listed - known):
        raise InvalidRequest(f"option {option} names {_names(unknown)}, which this query does not read")
    if missing := sorted(known - listed):
        raise InvalidRequest(
            f"option {option} does not name {_names(missing)}: it must name every partition that is read "
            f"({EARLIEST}: earliest, {LATEST}: latest)"
        )


def name_of(place: Place) -> str:
    return f"{place[0]}/{place[1]}"


def _names(several: Iterable[Place]) -> str:
    return ", ".join(map(name_of, several))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stream has read: the next offset of every partition, and which topic it was that had that name."""

    topic_ids: Mapping[str, str]
    offsets: Mapping[Place, int]

    def to_checkpoint(self) -> Checkpoint:
        """Sorted: Spark compares checkpoints by their text."""
        entries: Checkpoint = dict(self.topic_ids)
        entries.update((name_of(place), offset) for place, offset in self.offsets.items())
        return dict(sorted(entries.items()))

    @classmethod
    def from_checkpoint(cls, checkpoint: Mapping[str, object]) -> "Progress":
        topic_ids: dict[str, str] = {}
        offsets: dict[Place, int] = {}
        for name, value in checkpoint.items():
            topic, slash, partition = name.partition("/")  # no topic name has one
            if slash and partition.isdecimal() and isinstance(value, int):
                offsets[topic, int(partition)] = value
            elif not slash and isinstance(value, str):
                topic_ids[topic] = value
            else:
                raise InvalidRequest(f"the checkpoint holds {name!r}: {value!r}, which is no offset of myqueue")
        return cls(topic_ids, offsets)

    def within(self, survey: Survey) -> "Progress":
        """Without the topics that are gone, or are others by now."""
        ids = {t: i for t, i in self.topic_ids.items() if t in survey and survey[t].topic_id == i}
        return Progress(ids, {place: offset for place, offset in self.offsets.items() if place[0] in ids})

    def of_topic(self, topic: str) -> dict[int, int]:
        return {partition: offset for (name, partition), offset in self.offsets.items() if name == topic}
