"""Adds to an error what it is about: the topic, partition, consumer or producer of the failed call. Pure.

Servers answer with fixed texts; a caller with many topics wants to know which one was not found.
"""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from myqueue.protocol import errors, routes
from myqueue.protocol.errors import MyQueueError
from myqueue.protocol.routes import Route

_SIMILAR = 0.7  # of difflib: one wrong letter of four is similar, one of three is not
_MOST_COMPARED = 5_000  # comparing takes about 20 µs each
_LENGTHS_APART = 3


@dataclass(frozen=True, slots=True)
class ErrorSubject:
    topic: str | None = None
    partition: str | None = None
    consumer: str | None = None
    producer: str | None = None


class KnownConsumer(NamedTuple):
    """One that was registered here: in the API it is a number."""

    name: str
    topic: str


def subject_of(
    route: Route, given: Mapping[str, object], consumers: Mapping[int, KnownConsumer], details: Mapping[str, object]
) -> ErrorSubject:
    """`given`: all parameters of the call, by their names in the API; `details`: of the error."""
    topic, name = topic_of(route, given, consumers), given.get("name")
    if route is routes.CREATE_TOPIC:
        name = None
    consumer, producer = given.get("consumer_id"), given.get("producer_id")
    partition = given.get("partition_id", details.get("partition_id"))
    if isinstance(consumer, int) and consumer in consumers:
        consumer = f"{consumers[consumer].name!r} (id {consumer})"
    if name is not None and route is routes.REGISTER_CONSUMER:
        consumer = repr(name)
    elif name is not None:
        producer = repr(name)
    return ErrorSubject(
        None if topic is None else repr(topic),
        None if partition is None else str(partition),
        None if consumer is None else str(consumer),
        None if producer is None else str(producer),
    )


def topic_of(route: Route, given: Mapping[str, object], consumers: Mapping[int, KnownConsumer]) -> object:
    """The topic that a call is about; None if it does not say."""
    consumer = given.get("consumer_id")
    if route is routes.CREATE_TOPIC:
        return given.get("name")
    if "topic" not in given and isinstance(consumer, int) and consumer in consumers:
        return consumers[consumer].topic
    return given.get("topic")


def name_partition(error: MyQueueError, topic: str, partition: int, url: str) -> None:
    """Of an attempt at a broker, whose answers are about one partition."""
    name_subject(error, ErrorSubject(repr(topic), str(partition)), url)
    if repr(topic) not in error.message:
        error.reword(f"{error.message}: partition {partition} of topic {topic!r}")


def name_subject(error: MyQueueError, subject: ErrorSubject, url: str) -> None:
    """Appends it to the message. One that names the URL says all of it: there was no answer of myqueue."""
    if url in error.message:
        return
    if isinstance(error, errors.TopicNotFound | errors.TopicExists):
        about = subject.topic
    elif isinstance(error, errors.PartitionNotFound):
        about = _of_topic(subject.partition, subject.topic)
    elif isinstance(error, errors.ConsumerNotFound):
        about = _of_topic(subject.consumer, subject.topic)
    elif isinstance(error, errors.ProducerNotFound):
        about = _of_topic(subject.producer, subject.topic)
    else:
        about = _all_of(subject)
        if error.http_status >= 500 or not about:
            about = f"{about}, at {url}" if about else f"at {url}"
    if about and about not in error.message:
        error.reword(f"{error.message.rstrip('!')}: {about}")


def name_topic(error: MyQueueError, topic: str) -> None:
    """For one of several topics: an error of a partition names its number only."""
    error.details.setdefault("topic", topic)
    if repr(topic) not in error.message:
        error.reword(f"{error.message} (topic {topic!r})")


def close_match(name: str, names: Collection[str]) -> str | None:
    """The name that was probably meant."""
    near = [other for other in names if abs(len(other) - len(name)) <= _LENGTHS_APART and other != name]
    by_letters = {other.casefold(): other for other in near[:_MOST_COMPARED]}
    found = difflib.get_close_matches(name.casefold(), by_letters, 1, _SIMILAR)
    return by_letters[found[0]] if found else None


def _of_topic(what: str | None, topic: str | None) -> str | None:
    return what if what is None or topic is None else f"{what} of topic {topic}"


def _all_of(subject: ErrorSubject) -> str:
    named = {
        "partition": subject.partition,
        "consumer": subject.consumer,
        "producer": subject.producer,
        "topic": subject.topic,
    }
    return " of ".join(f"{kind} {value}" for kind, value in named.items() if value is not None)
