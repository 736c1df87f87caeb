"""Replay of dead letters: each goes back to the topic that it came from, once.

Letters are sent many at a time, each under an idempotency key made of its own place; those of one key one after the
other. The replay's cursor passes a letter when it and all before it are stored. One that was sent but not passed,
because the replay was interrupted, is recognised by its key when it is sent again.
"""

import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from myqueue.admin import Admin
from myqueue.argument_checks import WrongValue
from myqueue.cluster_url import base_url
from myqueue.consumer import Consumer
from myqueue.message import Message
from myqueue.protocol import routes
from myqueue.protocol.errors import MyQueueError
from myqueue.protocol.json_bytes import bytes_to_json
from myqueue.reader import Reader
from myqueue.transport import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts, Transport
from myqueue.worker.dead_letters import REPLAYS, DeadLetter
from myqueue.worker.message_source import commit_held

NAME = "replay"
COMMIT_EVERY_S = 1.0
LOOK_S = 0.2
MAX_READ = 256  # letters at a time
SENT_AT_ONCE = 16  # requests


@dataclass(frozen=True, slots=True)
class ReplayCounts:
    replayed: int = 0
    skipped: int = 0  # of another error
    foreign: int = 0  # messages of the topic that are no dead letters


def replay(
    url: str | None = None,
    *,
    dead_letter_topic: str,
    limit: int | None = None,
    error: str | None = None,
    to: str | None = None,
    dry_run: bool = False,
    on_letter: Callable[[DeadLetter], None] | None = None,
    retry: RetryPolicy = DEFAULT_RETRY,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
) -> ReplayCounts:
    """Sends the dead letters that there are now back to their topics, with key, value, timestamp and own headers.

    `error`: only those of this exception, by its full name or the last part of it. `limit`: at most so many. `to`: to
    this topic instead. The next call goes on behind the last letter; with `error`, behind the last one of that error.
    `dry_run` changes nothing. `on_letter` is called with each letter, after it was sent.
    """
    if limit is not None and limit < 1:
        raise WrongValue("limit must be 1 or more, or None")
    name = NAME if error is None else f"{NAME}.{error}"
    address = base_url(url)
    selection = _Selection(limit, error, on_letter)
    with Admin(address, retry=retry, timeouts=timeouts) as admin:
        topic_id = admin.describe_topic(dead_letter_topic).topic_id
        bounds = admin.offsets(dead_letter_topic)
        cursors = _cursors(admin, dead_letter_topic, name) if dry_run else {}
    ends = {partition: bound.end_offset for partition, bound in bounds.items()}
    if dry_run:
        starts = {partition: bound.beginning_offset for partition, bound in bounds.items()} | cursors
        with Reader(address, dead_letter_topic, starts, retry=retry, timeouts=timeouts) as reader:
            _look(reader, ends, selection)
        return selection.counts()
    transport = Transport(address, timeouts=timeouts, retry=retry)
    consumer = Consumer(
        address, dead_letter_topic, name, start="earliest", commit="manual", retry=retry, timeouts=timeouts
    )
    try:
        with consumer, ThreadPoolExecutor(SENT_AT_ONCE, "myqueue-replay") as pool:
            sender = _ParallelSender(pool, lambda letter: _send(transport, topic_id, letter, to or letter.topic))
            _replay(consumer, ends, selection, sender)
    finally:
        transport.close()
    return selection.counts()


class _Selection:
    """Which letters are meant, and how many there were."""

    def __init__(self, limit: int | None, error: str | None, on_letter: Callable[[DeadLetter], None] | None) -> None:
        self._limit = math.inf if limit is None else limit
        self._error = error
        self._on_letter = on_letter
        self._replayed = self._skipped = self._foreign = 0

    @property
    def left(self) -> float:
        """How many more may be replayed."""
        return self._limit - self._replayed

    def wants(self, letter: DeadLetter | None) -> bool:
        return letter is not None and (self._error is None or letter.is_error(self._error))

    def passed(self, letter: DeadLetter | None) -> None:
        """It was replayed, or is not wanted."""
        if letter is None:
            self._foreign += 1
        elif not self.wants(letter):
            self._skipped += 1
        else:
            self._replayed += 1
            if self._on_letter is not None:
                self._on_letter(letter)

    def counts(self) -> ReplayCounts:
        return ReplayCounts(self._replayed, self._skipped, self._foreign)


class _ParallelSender:
    """Sends letters side by side, but those of one key in their order."""

    def __init__(self, pool: ThreadPoolExecutor, send: Callable[[DeadLetter], None]) -> None:
        self._pool = pool
        self._send = send

    def send(self, letters: Iterable[DeadLetter]) -> dict[tuple[int, int], MyQueueError]:
        """Why some of them may not be stored, by their places."""
        lanes: dict[object, list[DeadLetter]] = {}
        for letter in letters:
            key = letter.message.key
            lanes.setdefault(_place(letter.message) if key is None else (letter.topic, key), []).append(letter)
        sent = [self._pool.submit(self._send_lane, lane) for lane in lanes.values()]
        try:
            return {place: error for lane in sent for place, error in lane.result().items()}
        except BaseException:
            for lane in sent:
                lane.cancel()
            raise

    def _send_lane(self, lane: list[DeadLetter]) -> dict[tuple[int, int], MyQueueError]:
        for number, letter in enumerate(lane):
            try:
                self._send(letter)
            except MyQueueError as error:
                return {_place(other.message): error for other in lane[number:]}
        return {}


def _place(message: Message) -> tuple[int, int]:
    return message.partition, message.offset


def _cursors(admin: Admin, topic: str, name: str) -> dict[int, int]:
    """Of the replay, if there was one."""
    for consumer in admin.consumers(topic):
        if consumer.name == name:
            return {number: lag.cursor for number, lag in admin.lag(consumer.consumer_id).partitions.items()}
    return {}


def _look(reader: Reader, ends: dict[int, int], selection: _Selection) -> None:
    """Up to where the partitions ended; retention may delete the last ones meanwhile."""
    while selection.left > 0 and any(offset < ends[number] for number, offset in reader.position().items()):
        message = reader.poll(LOOK_S)
        if message is not None and message.offset < ends[message.partition]:
            selection.passed(DeadLetter.of(message))


def _replay(consumer: Consumer, ends: dict[int, int], selection: _Selection, sender: _ParallelSender) -> None:
    """Up to where the partitions ended: letters that come meanwhile may be those that were just replayed."""
    passed: dict[int, int] = {}
    commit_at = time.monotonic() + COMMIT_EVERY_S
    try:
        while selection.left > 0 and (read := consumer.poll_many(int(min(MAX_READ, selection.left)), 0)):
            late = {message.partition for message in read if message.offset >= ends.get(message.partition, 0)}
            consumer.pause(late)
            messages = [message for message in read if message.offset < ends.get(message.partition, 0)]
            letters = [DeadLetter.of(message) for message in messages]
            failures = sender.send(letter for letter in letters if letter is not None and selection.wants(letter))
            for message, letter in zip(messages, letters, strict=True):
                if (failure := failures.get(_place(message))) is not None:
                    raise failure
                selection.passed(letter)
                passed[message.partition] = message.offset + 1
            if time.monotonic() >= commit_at:
                commit_held(consumer, passed)
                passed.clear()
                commit_at = time.monotonic() + COMMIT_EVERY_S
    finally:
        commit_held(consumer, passed)


def _send(transport: Transport, letters_id: str, letter: DeadLetter, topic: str) -> None:
    """Stored once, however often it is sent: the key names the letter, and the partition is the same each time."""
    message = letter.message
    headers = (*letter.own_headers(), (REPLAYS, str(letter.replays + 1).encode()))
    body: dict[str, Any] = {
        "value": bytes_to_json(message.value),
        "timestamp": letter.timestamp,
        "headers": [{"key": key, "value": None if value is None else bytes_to_json(value)} for key, value in headers],
    }
    if message.key is not None:
        body["key"] = bytes_to_json(message.key)
    if topic == letter.topic:
        body["partition"] = letter.partition  # where the other messages of its key are
    transport.call(
        routes.APPEND_MESSAGES,
        path={"topic": topic},
        body={"messages": [body]},
        idempotency_key=f"dead letter {letters_id} {message.partition}/{message.offset}",
    )
