"""What a consumer subscribes to, and which of its calls' arguments belong to which topic. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from myqueue.argument_checks import WrongType, WrongValue, checked_int
from myqueue.message import Message, TopicPartition
from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.limits import STAGING_PREFIX

V = TypeVar("V")

Topics = str | Sequence[str] | re.Pattern[str]
Partition = int | TopicPartition  # a number where one topic is subscribed
# Keys are partitions' numbers, and TopicPartition where the topic was given as a list or as a pattern.
Offsets = dict[Any, int]


class Everything(Enum):
    """The type of EVERYTHING: a commit that names nothing. Not None: that is what a poll returns that found nothing."""

    EVERYTHING = "everything that was handed out"


EVERYTHING = Everything.EVERYTHING
Committed = Message | Iterable[Message] | Mapping[int, int] | Mapping[TopicPartition, int] | Everything


class TopicSubscription:
    """One topic, several, or all whose whole name matches a pattern."""

    def __init__(self, topic: Topics) -> None:
        self.pattern: re.Pattern[str] | None = None
        self.topics: tuple[str, ...] = ()  # by name
        self.by_number = isinstance(topic, str)  # partitions are named by their number alone
        if isinstance(topic, str):
            self.topics = (topic,) if topic else ()
        elif isinstance(topic, re.Pattern):
            if not isinstance(topic.pattern, str):
                raise WrongType("a pattern of topics must be one of str, not of bytes")
            self.pattern = topic
        elif isinstance(topic, Sequence) and all(isinstance(name, str) and name for name in topic):
            self.topics = tuple(dict.fromkeys(topic))
        else:
            raise WrongType(f"topic must be a name, a list of names or a compiled pattern, not {topic!r}")
        if not self.topics and self.pattern is None:
            raise WrongType("a consumer needs a topic")

    @property
    def only(self) -> str | None:
        """The topic, if there is and will be no other one."""
        return self.topics[0] if len(self.topics) == 1 else None

    def __str__(self) -> str:
        """For messages to people."""
        return ", ".join(self.topics) if self.pattern is None else self.pattern.pattern

    def matching(self, listed: Iterable[str]) -> set[str]:
        """Of the topics that exist, those that the pattern is for; never those in which Spark's streams stage."""
        if self.pattern is None:
            return set(self.topics)
        return {name for name in listed if not name.startswith(STAGING_PREFIX) and self.pattern.fullmatch(name)}

    # Arguments and results of calls

    def resolve(self, partition: object, parameter: str = "partition") -> TopicPartition:
        if isinstance(partition, TopicPartition):
            topic, number = partition
            if self.pattern is None and topic not in self.topics:
                raise InvalidRequest(f"{parameter}: topic {topic!r} is not subscribed, but {self}")
            return TopicPartition(topic, checked_int(parameter, number))
        number = checked_int(parameter, partition)
        if self.only is None:
            raise InvalidRequest(
                f"{parameter} {number}: several topics are subscribed; write TopicPartition(topic, {number})"
            )
        return TopicPartition(self.only, number)

    def by_topic(self, partitions: Iterable[object]) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for partition in partitions:
            topic, number = self.resolve(partition)
            found.setdefault(topic, set()).add(number)
        return found

    def offsets_by_topic(self, offsets: Mapping[Any, int]) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for partition, given in offsets.items():
            topic, number = self.resolve(partition, "what: a partition")
            offset = checked_int(f"what: the offset of {partition!r}", given)
            if min(number, offset) < 0:
                raise WrongValue(f"what: partitions and offsets are 0 or more, not {{{partition!r}: {given!r}}}")
            found.setdefault(topic, {})[number] = offset
        return found

    def offsets_behind(self, messages: Message | Iterable[Message]) -> dict[str, dict[int, int]]:
        """The next offset of each partition of which there is a message."""
        found: dict[str, dict[int, int]] = {}
        for message in _checked_messages(messages):
            topic, partition, following = message.topic, message.partition, message.offset + 1
            offsets = found.get(topic)
            if offsets is None:
                if self.pattern is None and topic not in self.topics:
                    raise InvalidRequest(f"a message of topic {topic!r}, which is not subscribed, but {self}")
                found[topic] = {partition: following}
            elif offsets.get(partition, 0) < following:
                offsets[partition] = following
        return found

    def keyed(self, by_topic: Mapping[str, Mapping[int, V]]) -> dict[Any, V]:
        if self.by_number:
            for values in by_topic.values():
                return dict(values)
        return {
            TopicPartition(topic, number): value
            for topic, values in by_topic.items()
            for number, value in values.items()
        }


def _checked_messages(what: Message | Iterable[Message]) -> list[Message]:
    if isinstance(what, Message):
        return [what]
    wanted = "what must be a message, a list of messages or {partition: next offset}"
    if what is None:
        raise WrongType(f"{wanted}, not None, as of a poll that found nothing; commit() takes everything handed out")
    if isinstance(what, str | bytes) or not isinstance(what, Iterable):
        raise WrongType(f"{wanted}, not {type(what).__name__}")
    messages = list(what)
    for message in messages:
        if not isinstance(message, Message):
            raise WrongType(f"{wanted}; in the list is {message!r}")
    return messages


class Named(Protocol):
    @property
    def topic(self) -> str: ...


N = TypeVar("N", bound=Named)


class TopicRotation(Generic[N]):
    """The subscribed topics, the longest waiting first: each hands out in its turn, however much another one has.

    The caller locks changes. An iteration needs no lock: it goes on over the topics as they were.
    """

    def __init__(self) -> None:
        self.waiting: tuple[N, ...] = ()
        self._by_name: dict[str, N] = {}

    def __iter__(self) -> Iterator[N]:
        return iter(self.waiting)

    def __len__(self) -> int:
        return len(self.waiting)

    def get(self, topic: str) -> N | None:
        return self._by_name.get(topic)

    def add(self, topic: N) -> None:
        """It has waited for longest: a new topic does not wait for a round of the others."""
        self.waiting = (topic, *self.waiting)
        self._by_name[topic.topic] = topic

    def remove(self, topic: N) -> None:
        self.waiting = tuple(each for each in self.waiting if each is not topic)
        del self._by_name[topic.topic]

    def served(self, topic: N) -> None:
        if self.waiting[-1] is not topic:
            self.waiting = (*(each for each in self.waiting if each is not topic), topic)
