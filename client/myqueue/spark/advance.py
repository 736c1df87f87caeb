"""How a stream goes on from where it has got to: what the next micro-batch reads, and what was lost before it. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from myqueue.protocol.errors import MyQueueError
from myqueue.spark import losses
from myqueue.spark.offsets import Bounds, Place, Progress, Survey, places
from myqueue.spark.ranges import Range, share


@dataclass(frozen=True, slots=True)
class Step:
    end: Progress
    lost: tuple[MyQueueError, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    ranges: list[Range]
    lost: tuple[MyQueueError, ...]


def ends(survey: Survey) -> Progress:
    """Everything that is there has been read."""
    return Progress(_topic_ids(survey), {place: _bounds(place, survey).end for place in places(survey)})


def next_end(start: Progress, survey: Survey, most: int | None, is_subscribed: Callable[[str], bool]) -> Step:
    """Where the next micro-batch ends; `most` is how many messages it may have.

    What is new begins where it begins, and so do a topic that was made again and a partition that has become shorter.
    """
    lost: list[MyQueueError] = []
    for topic in sorted(start.topic_ids):
        if topic not in survey:
            if is_subscribed(topic):
                lost.append(losses.deleted(topic))
        elif start.topic_ids[topic] != survey[topic].topic_id:
            lost.append(losses.made_again(topic))
    first: dict[Place, int] = {}
    waiting: dict[Place, int] = {}
    for place in places(survey):
        bounds = _bounds(place, survey)
        read = _read(start, place, survey[place[0]].topic_id)
        if read is not None and read > bounds.end:
            lost.append(losses.rewound(place, read, bounds.end))
            read = None
        first[place] = max(bounds.beginning, read or 0)
        waiting[place] = bounds.end - first[place]
    counts = waiting if most is None else share(waiting, most)
    end = {place: first[place] + counts[place] for place in first}
    return Step(Progress(_topic_ids(survey), end), tuple(lost))


def plan(start: Progress, end: Progress, survey: Survey) -> Plan:
    """What lies between two points of a stream. The survey tells where partitions begin by now."""
    ranges: list[Range] = []
    lost: list[MyQueueError] = []
    for place in sorted(end.offsets):
        topic, partition = place
        topic_id, last = end.topic_ids[topic], end.offsets[place]
        is_there = topic in survey and survey[topic].topic_id == topic_id and partition in survey[topic].partitions
        beginning = min(_bounds(place, survey).beginning, last) if is_there else 0
        read = _read(start, place, topic_id)
        if read is not None and read > last:
            read = None  # it has become shorter, and is read again from its beginning
        if read is not None and read < beginning:
            lost.append(losses.retained(place, read, beginning, _bounds(place, survey).beginning))
        ranges.append(Range(topic, topic_id, partition, max(beginning, read or 0), last))
    return Plan(ranges, tuple(lost))


def _topic_ids(survey: Survey) -> dict[str, str]:
    return {topic: bounds.topic_id for topic, bounds in survey.items()}


def _bounds(place: Place, survey: Survey) -> Bounds:
    return survey[place[0]].partitions[place[1]]


def _read(start: Progress, place: Place, topic_id: str) -> int | None:
    """Up to where this very partition was read; None if it is new."""
    return start.offsets.get(place) if start.topic_ids.get(place[0]) == topic_id else None
