"""What the worker needs of a consumer: messages, which partitions went away, commits of those that did not."""

import logging
from collections.abc import Callable, Iterator
from itertools import count

from myqueue.consumer import Consumer
from myqueue.message import Message
from myqueue.protocol.errors import StaleCommit, StaleLease
from myqueue.subscription_state import LeaseIdentity

logger = logging.getLogger("myqueue")

_AT_ONCE_S = 1e-6  # a poll that takes what was fetched, and does not ask the cluster


class MessageSource:
    """Used by one thread. `on_revoke` gets partitions whose messages in hand are delivered again."""

    def __init__(self, consumer: Consumer, on_revoke: Callable[[int], None]) -> None:
        self._consumer = consumer
        self._on_revoke = on_revoke
        self._leases: dict[int, LeaseIdentity] = {}  # under which the messages in hand were read
        self._paused: set[int] = set()
        self.assigned = 0  # partitions that this process has

    def read(self, max_messages: int, max_bytes: int, timeout_s: float) -> Iterator[Message]:
        """What there is, at least one message unless none comes in time. Use each before the next."""
        size = 0
        message = self._consumer.poll(timeout_s)
        self._drop_revoked()
        for number in count(1):
            if message is None:
                return
            lease = self._consumer._core.handed_lease
            if lease is not None and self._leases.get(message.partition, lease) != lease:
                self._revoke(message.partition)
            if lease is not None:
                self._leases[message.partition] = lease
            yield message
            size += len(message.value)
            if number >= max_messages or size >= max_bytes:
                return
            message = self._consumer.poll(_AT_ONCE_S)

    def commit(self, offsets: dict[int, int]) -> dict[int, int]:
        """Without partitions that were sought, or had by another process, since their messages were read."""
        self._drop_revoked()
        return commit_held(self._consumer, {each: offset for each, offset in offsets.items() if each in self._leases})

    def pause(self, partitions: set[int]) -> None:
        """Reads nothing of these partitions, and all others."""
        if partitions != self._paused:
            self._consumer.resume(self._paused - partitions)
            self._consumer.pause(partitions - self._paused)
            self._paused = set(partitions)

    def _drop_revoked(self) -> None:
        """Also before a message of the next lease comes: what is dropped need not run."""
        current = self._consumer._core.leases()
        self.assigned = len(current)
        for partition, lease in list(self._leases.items()):
            if current.get(partition) != lease:
                self._revoke(partition)

    def _revoke(self, partition: int) -> None:
        del self._leases[partition]
        self._paused.discard(partition)
        self._consumer.resume([partition])
        self._on_revoke(partition)


def commit_held(consumer: Consumer, offsets: dict[int, int]) -> dict[int, int]:
    """What was committed. Partitions that another process has by now are left out: it reads their messages."""
    wanted = dict(offsets)
    while wanted:
        try:
            consumer.commit(wanted)
        except (StaleLease, StaleCommit) as error:
            partition = error.details.get("partition_id")
            if not isinstance(partition, int) or wanted.pop(partition, None) is None:
                raise
            logger.info("partition %s went to another process before its commit: %s", partition, error)
        else:
            break
    return wanted
