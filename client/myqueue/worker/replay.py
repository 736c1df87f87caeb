"""Replay of dead letters: each goes back to the topic that it came from, once.

A letter is sent under an idempotency key made of its own place, and then the replay's cursor passes it. One that was
sent but not passed, because the replay was interrupted, is recognised by its key when it is sent again.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from myqueue.admin import Admin
from myqueue.cluster_url import base_url
from myqueue.consumer import Consumer
from myqueue.message import Message
from myqueue.protocol import routes
from myqueue.protocol.errors import MyQueueError, from_body
from myqueue.protocol.json_bytes import bytes_to_json
from myqueue.reader import Reader
from myqueue.transport import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts, Transport
from myqueue.worker.dead_letters import REPLAYS, DeadLetter

NAME = "replay"
COMMIT_EVERY_S = 1.0
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class ReplayCounts:
    replayed: int = 0
    skipped: int = 0  # of another error
    foreign: int = 0  # messages of the topic that are no dead letters


class ReplayBusy(MyQueueError):
    """Another replay of the topic runs."""

    error_code, http_status, default_message = 40909, 409, "another replay of these dead letters is running"
    default_outcome = "not_written"


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
        raise ValueError("limit must be 1 or more, or None")
    name = NAME if error is None else f"{NAME} {error}"
    address = base_url(url)
    with Admin(address, retry=retry, timeouts=timeouts) as admin:
        topic_id = admin.describe_topic(dead_letter_topic).topic_id
        bounds = admin.offsets(dead_letter_topic)
        ends = {partition: bound.end_offset for partition, bound in bounds.items()}
        if dry_run:
            starts = {partition: bound.beginning_offset for partition, bound in bounds.items()}
            starts |= _cursors(admin, dead_letter_topic, name)
    counts = _Counts(limit, error, on_letter)
    if dry_run:
        with Reader(address, dead_letter_topic, starts, retry=retry, timeouts=timeouts) as reader:
            for message in _until(reader, ends):
                if counts.count(message, lambda _: None):
                    break
        return counts.result()
    transport = Transport(address, timeouts=timeouts, retry=retry)
    settings = {"retry": retry, "timeouts": timeouts}
    try:
        with Consumer(address, dead_letter_topic, name, None, "earliest", commit="manual", **settings) as consumer:
            _replay(consumer, ends, counts, lambda letter: _send(transport, topic_id, letter, to))
    finally:
        transport.close()
    return counts.result()


def _cursors(admin: Admin, topic: str, name: str) -> dict[int, int]:
    """Of the replay, if there was one."""
    for consumer in admin.consumers(topic):
        if consumer.name == name:
            return {number: lag.cursor for number, lag in admin.lag(consumer.consumer_id).partitions.items()}
    return {}
