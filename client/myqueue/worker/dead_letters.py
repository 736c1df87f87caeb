"""Dead letters: messages that a worker gave up, with headers that say why, where from, how often and when."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from myqueue.delivery import Delivery
from myqueue.message import Message
from myqueue.partition_queue import Headers
from myqueue.producer import Producer
from myqueue.protocol.errors import MyQueueError
from myqueue.protocol.limits import MAX_HEADERS, MAX_MESSAGE_BYTES
from myqueue.transport import RetryPolicy, Timeouts

logger = logging.getLogger("myqueue")

PREFIX = "dead-letter-"
REPLAYS = f"{PREFIX}replays"  # the one header that a replayed message keeps
MAX_REASON_CHARS = 1000
CLOSE_S = 5.0


class Reject(Exception):
    """Raised by a handler: the message goes to the dead-letter topic at once, without a retry."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up. `attempts` counts calls of the handler by the worker that gave up."""

    message: Message  # as it is in the dead-letter topic
    error: str  # the exception's type, with its module unless it is built in
    reason: str  # the exception's text, cut to 1,000 characters
    topic: str
    partition: int
    offset: int
    timestamp: int
    attempts: int
    died_at: int  # ms since 1970
    worker: str
    replays: int  # how often it was replayed before it died again

    @classmethod
    def of(cls, message: Message) -> Self | None:
        """None if it is not one."""
        found = {key.removeprefix(PREFIX): value for key, value in message.headers if key.startswith(PREFIX)}
        text = {key: (value or b"").decode(errors="replace") for key, value in found.items()}
        try:
            return cls(
                message=message,
                error=text["error"],
                reason=text["reason"],
                topic=text["topic"],
                partition=int(text["partition"]),
                offset=int(text["offset"]),
                timestamp=int(text["timestamp"]),
                attempts=int(text["attempts"]),
                died_at=int(text["time"]),
                worker=text["worker"],
                replays=int(text.get("replays", "0")),
            )
        except (KeyError, ValueError):
            return None

    def is_error(self, name: str) -> bool:
        """By its full name, or by the last part of it."""
        return name in (self.error, self.error.rpartition(".")[2])

    def own_headers(self) -> Headers:
        """Of the message before it died."""
        return tuple((key, value) for key, value in self.message.headers if not key.startswith(PREFIX))


def error_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def letter_headers(message: Message, error: BaseException, attempts: int, worker: str, now_ms: int) -> Headers:
    """The message's own headers, then those of the dead letter. A Reject that was raised from an error names that."""
    cause = error.__cause__ if isinstance(error, Reject) and error.__cause__ is not None else error
    said = str(error) or str(cause)
    facts = {
        "error": error_name(cause),
        "reason": said if len(said) <= MAX_REASON_CHARS else said[: MAX_REASON_CHARS - 1] + "…",
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "attempts": attempts,
        "time": now_ms,
        "worker": worker,
    }
    added = tuple((PREFIX + name, str(fact).encode(errors="replace")) for name, fact in facts.items())
    replays = tuple((key, value) for key, value in message.headers if key == REPLAYS and _is_count(value))[:1]
    own = [(key, value) for key, value in message.headers if not key.startswith(PREFIX)]
    # As much as a message may have: a letter that cannot be stored would be tried for ever.
    places = MAX_HEADERS - len(added) - len(replays)
    room = MAX_MESSAGE_BYTES - sum(map(_size, (*added, *replays)))
    kept: list[tuple[str, bytes | None]] = []
    for header in own:
        if len(kept) < places and _size(header) <= room:
            kept.append(header)
            room -= _size(header)
    if len(kept) < len(own):
        logger.warning("a dead letter of %s loses %d of its own headers", message.topic, len(own) - len(kept))
    return (*kept, *replays, *added)


def _is_count(value: bytes | None) -> bool:
    return value is not None and value.isdigit() and len(value) < 10


def _size(header: tuple[str, bytes | None]) -> int:
    key, value = header
    return len(key.encode()) + len(value or b"")


class DeadLetterProducer:
    """Sends dead letters; used by many threads. The topic is made with the first one."""

    def __init__(self, url: str, topic: str, worker: str, retry: RetryPolicy, timeouts: Timeouts) -> None:
        self.topic = topic
        self._url = url
        self._worker = worker
        self._retry = retry
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._failed: Producer | None = None  # after some errors a producer sends no more

    def send(
        self, message: Message, error: BaseException, attempts: int, on_end: Callable[[MyQueueError | None], None]
    ) -> None:
        """Calls `on_end` when the letter is stored, or with why it may not be; in a send thread, or here."""
        headers = letter_headers(message, error, attempts, self._worker, time.time_ns() // 1_000_000)
        producer = self._working_producer()

        def ended(delivery: Delivery) -> None:
            failure = delivery.exception()
            if failure is not None:
                self._failed = producer
            on_end(failure)

        try:
            delivery = producer.send(message.value, message.key, headers=headers)
        except MyQueueError:
            self._failed = producer
            raise
        delivery.add_done_callback(ended)

    def close(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            _close(producer)

    def _working_producer(self) -> Producer:
        """Not in a send thread: the producer that failed is closed here."""
        with self._lock:
            failed = self._producer if self._producer is self._failed else None
            if failed is not None:
                self._producer = self._failed = None
            if self._producer is None:
                self._producer = Producer(self._url, self.topic, retry=self._retry, timeouts=self._timeouts)
            producer = self._producer
        if failed is not None:
            _close(failed)
        return producer


def _close(producer: Producer) -> None:
    try:
        producer.close(CLOSE_S)
    except (MyQueueError, TimeoutError) as error:
        logger.debug("closing the producer of %s: %s", producer.topic, error)
